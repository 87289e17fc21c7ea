"""The arms: where the weights of the tokens come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from budwood.errors import UsageError, nearest
from budwood.methods.taalm.objectives import Objective
from budwood.methods.taalm.settings import (
    BaseSettings,
    BodySettings,
    EncoderSettings,
    HeadSettings,
    MetaSettings,
    StageSettings,
)

Rule = Literal["uniform", "oracle", "one_minus_p", "focal", "entropy", "capitalised", "token_dropping", "rho1"]

INVENTED = 300  # facts of the project's own generator, where an arm trains on them
CUT = 24  # of SmolLM2's 30 layers: the lowest that the adapter changes


@dataclass(frozen=True)
class Learned:
    """How a scorer is trained.

    Attributes:
        body: which one.
        stage: its training on J_t.
        real, more, invented: trained on the CPU split of ta_train, on the rest of ta_train that fits the window, on
            invented facts.
        meta: training on the outer loss afterwards.
    """

    body: BodySettings
    stage: StageSettings = field(default_factory=StageSettings)
    real: bool = True
    more: bool = False
    invented: bool = False
    meta: MetaSettings | None = None


@dataclass(frozen=True)
class Arm:
    """One row of the table.

    Attributes:
        name: what `--arms` takes.
        title: what the table prints.
        weights: a rule, or a scorer.
        floor: share of uniform weights that is mixed in.
    """

    name: str
    title: str
    weights: Rule | Learned
    floor: float = 0.0


def _head(objective: Objective = "first_order", **changes: int) -> tuple[HeadSettings, StageSettings]:
    return HeadSettings(layers=(CUT,), **changes), StageSettings(objective=objective)


RULES = (
    Arm("uniform", "uniform", "uniform"),
    Arm("oracle", "oracle (the object's tokens)", "oracle"),
    Arm("entropy", "entropy", "entropy"),
    Arm("one_minus_p", "1 − p", "one_minus_p"),
    Arm("focal", "focal, γ = 2", "focal"),
    Arm("token_dropping", "hardest 50 % of the tokens", "token_dropping"),
    Arm("capitalised", "capitalised words", "capitalised"),
    Arm("rho1", "RHO-1, 60 % by excess loss", "rho1"),
)
SCORERS = (
    Arm("head", "head, 156 facts", Learned(*_head(neighbours=0)), floor=0.2),
    Arm("head_all", "head, 327 + 300 invented", Learned(*_head(), more=True, invented=True), floor=0.2),
    Arm("head_all_no_floor", "the same, floor 0", Learned(*_head(), more=True, invented=True)),
    Arm("head_list", "head, list objective", Learned(*_head("list"), more=True, invented=True)),
    Arm("head_invented", "head, invented facts only", Learned(*_head(), real=False, invented=True), floor=0.2),
    Arm(
        "head_meta",
        "head, then the true outer loss",
        Learned(*_head(), more=True, invented=True, meta=MetaSettings()),
        floor=0.2,
    ),
    Arm("encoder", "MiniLM with LoRA, 327", Learned(EncoderSettings(), more=True), floor=0.2),
    Arm("base", "the base with LoRA, 156", Learned(BaseSettings(), StageSettings(batch_size=8, steps=150)), floor=0.2),
)
_GROUPS = {"rules": RULES, "scorers": SCORERS, "headline": (RULES[0], RULES[1], SCORERS[1])}


def choose_arms(names: list[str]) -> list[Arm]:
    """Return the arms called so; "rules", "scorers" and "headline" stand for several.

    Raises:
        UsageError: an unknown name.
    """
    known = {arm.name: (arm,) for arm in (*RULES, *SCORERS)} | _GROUPS
    for name in names:
        if name not in known:
            raise UsageError(f"there is no arm {name!r}", action=nearest(name, known))
    return list({arm.name: arm for name in names for arm in known[name]}.values())


def title(name: str) -> str:
    """Return what the table prints for an arm; its name for one that an older version of this file had."""
    return next((arm.title for arm in (*RULES, *SCORERS) if arm.name == name), name)
