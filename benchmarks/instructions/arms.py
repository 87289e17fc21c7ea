"""The arms of the table: a tuner of the registry and its settings. All adapt all seven projections unless named so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from budwood.errors import UsageError, nearest
from budwood.tuning.protocol import Tuner, TunerSettings
from budwood.tuning.registry import tuners

LEARNING_RATES = (5e-4, 1e-3, 2e-3, 5e-3, 1e-2)  # every arm gets the same trials
SEARCH_SEED = 0  # final runs have the seeds 1, 2, …


@dataclass(frozen=True)
class Arm:
    """One row of the table.

    Attributes:
        name: what `--arms` takes.
        title: what the table prints.
        tuner: its name in the registry; "" for the base alone.
        settings: what differs from the tuner's defaults.
        seeds: how many final runs it gets.
    """

    name: str
    title: str
    tuner: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: int = 3

    def build(self) -> tuple[Tuner, TunerSettings] | str:
        """Return the tuner and its settings, or why this version of the library cannot run the arm."""
        tuner = tuners().get(self.tuner)
        if tuner is None:
            return f"this version has no tuner {self.tuner!r}"
        try:
            return tuner, tuner.settings(**self.settings)
        except ValidationError as error:
            return f"the tuner {self.tuner!r} refuses {self.settings}: {error.errors()[0]['msg']}"


def _gift(name: str, title: str, seeds: int = 1, **settings: Any) -> Arm:
    return Arm(name, f"GIFT {title}", "gift", settings, seeds)


BASE = Arm("base", "base, instruction in the prompt", seeds=1)

_BLOCKS = [["q", "k", "v"], ["o"], ["gate", "up"], ["down"]]

# Parameters in brackets are those on SmolLM2-135M; LoRA r = 16 has 4,884,480.
HEADLINE = (
    BASE,
    _gift("gift_r32", "r=32, one φψ a kind of layer", 5, rank=32),  # 258,048
    # The rank at which its count comes nearest to that of gift_r32 (254,400).
    Arm("shared_lora", "shared LoRA r=25 (no W inside)", "shared_lora", {"rank": 25}, seeds=5),
    Arm("lora_r16", "LoRA r=16", "lora", {"rank": 16}),
    Arm("lora_r1", "LoRA r=1", "lora", {"rank": 1}),  # 305,280
    _gift("gift_blocks_r64", "r=64, one φψ a block (qkv, o, gate+up, down)", 3, rank=64, share=_BLOCKS),  # 294,912
    Arm("lora_r4", "LoRA r=4", "lora", {"rank": 4}),
    Arm("lora_r2", "LoRA r=2", "lora", {"rank": 2}),
    Arm("vera", "VeRA", "vera"),
    Arm("ia3", "IA3", "ia3"),
)
VARIANTS = (
    _gift("gift_r16", "r=16", rank=16),  # 129,024
    _gift("gift_r43", "r=43, the most under 1/14 of LoRA r=16", rank=43),  # 346,752
    _gift("gift_input_r32", "r=32, input side", rank=32, side="input"),  # 319,488
    _gift("gift_output_r32", "r=32, output side", rank=32, side="output"),  # 331,776
    _gift("gift_both_r16", "r=16, both sides", rank=16, side="both"),  # 325,632
    _gift("gift_o_output_r32", "r=32, o and down at the output", rank=32, side={"o": "output"}),  # 258,048
    _gift("gift_phi_zero_r32", "r=32, φ = 0 at the start", rank=32, init="phi_zero"),
    _gift("gift_scale4_r32", "r=32, s = 4", rank=32, alpha=128),
    _gift("gift_segments_r11", "r=11, segments of 10 layers", rank=11, share_depth=10),  # 266,112
    # More rank where the output of attention and of the block is made, less where scores are: 258,048.
    _gift("gift_ranks", "r=16 q k, 48 v o, 32 others", rank=32, group_ranks={"q": 16, "k": 16, "v": 48, "o": 48}),
    _gift("gift_qv_r112", "r=112, q and v only", rank=112, targets=["q", "v"]),  # 258,048
)
# What writes to the residual stream is edited at its output, what reads from it at its input: the one space that all
# layers share. As many parameters as 1/14 of LoRA r = 16 allows, beside shared LoRA of the same size.
DECIDING = (
    _gift("gift_residual_r43", "r=43, all at the residual stream", 5, rank=43, side={"o": "output"}),  # 346,752
    Arm("shared_lora_r34", "shared LoRA r=34 (no W inside)", "shared_lora", {"rank": 34}, seeds=5),  # 345,984
)
ARMS = (*HEADLINE, *VARIANTS, *DECIDING)
_GROUPS = {"headline": HEADLINE, "variants": VARIANTS, "deciding": DECIDING}


def choose_arms(names: list[str]) -> list[Arm]:
    """Return the arms called so; "headline", "variants" and "deciding" stand for all of that list."""
    known = {arm.name: (arm,) for arm in ARMS} | _GROUPS
    for name in names:
        if name not in known:
            raise UsageError(f"there is no arm {name!r}", action=nearest(name, known))
    return list({arm.name: arm for name in names for arm in known[name]}.values())


def find_arm(name: str) -> Arm | None:
    """Return the arm called `name`; None for one that an older version of this file had."""
    return next((arm for arm in ARMS if arm.name == name), None)
