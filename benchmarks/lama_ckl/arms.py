"""The arms: where the weights of the tokens come from, and what is done to them before they are used."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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

from .shapes import Shape

Rule = Literal["uniform", "oracle", "one_minus_p", "focal", "entropy", "capitalised", "token_dropping", "rho1"]

INVENTED = 300  # facts of the project's own generator, where an arm trains on them
CUT = 24  # of SmolLM2's 30 layers: the lowest that the adapter changes
LONG = 30  # epochs of a whole curve, as in the paper


@dataclass(frozen=True)
class Learned:
    """How a scorer is trained.

    Attributes:
        body: which one.
        stage: its training on J_t.
        real, more, invented: trained on the CPU split of ta_train, on the rest of ta_train that fits the window, on
            invented facts.
        vocabulary: also on facts of the very relations that are to be learned, about other subjects and from other
            texts: a user's own vocabulary of objects.
        meta: training on the outer loss afterwards.
    """

    body: BodySettings
    stage: StageSettings = field(default_factory=StageSettings)
    real: bool = True
    more: bool = False
    invented: bool = False
    vocabulary: bool = False
    meta: MetaSettings | None = None


@dataclass(frozen=True)
class Shipped:
    """A scorer of the package's resources, trained on invented facts only; `folder` is its name there."""

    folder: str


@dataclass(frozen=True)
class Arm:
    """One row of the table.

    Attributes:
        name: what `--arms` takes.
        title: what the table prints.
        weights: a rule, or a scorer.
        floor: share of uniform weights that is mixed in.
        shape: what a scorer's weights become.
        epochs: of its runs; None for the command's.
    """

    name: str
    title: str
    weights: Rule | Learned | Shipped
    floor: float = 0.0
    shape: Shape = "as_used"
    epochs: int | None = None


def _head(objective: Objective = "first_order", **changes: int) -> tuple[HeadSettings, StageSettings]:
    return HeadSettings(layers=(CUT,), **changes), StageSettings(objective=objective)


_ALL = Learned(*_head(), more=True, invented=True)
UNIFORM, ORACLE = Arm("uniform", "uniform", "uniform"), Arm("oracle", "oracle (the object's tokens)", "oracle")
HEAD = Arm("head_all", "head, 327 + 300 invented", _ALL, floor=0.2)
META = Arm(
    "head_meta", "head, then the true outer loss after 1 inner step", replace(_ALL, meta=MetaSettings()), floor=0.2
)
RULES = (
    UNIFORM,
    ORACLE,
    Arm("entropy", "entropy", "entropy"),
    Arm("one_minus_p", "1 − p", "one_minus_p"),
    Arm("focal", "focal, γ = 2", "focal"),
    Arm("token_dropping", "hardest 50 % of the tokens", "token_dropping"),
    Arm("capitalised", "capitalised words", "capitalised"),
    Arm("rho1", "RHO-1, 60 % by excess loss", "rho1"),
)
SCORERS = (
    Arm("shipped", "shipped head (invented facts only)", Shipped("smollm2"), floor=0.2),
    Arm("shipped_no_floor", "the same, floor 0", Shipped("smollm2")),
    Arm("shipped_encoder", "shipped MiniLM (invented facts only)", Shipped("minilm"), floor=0.2),
    Arm("head", "head, 156 facts", Learned(*_head(neighbours=0)), floor=0.2),
    HEAD,
    Arm("head_all_no_floor", "the same, floor 0", _ALL),
    Arm("head_list", "head, list objective", Learned(*_head("list"), more=True, invented=True)),
    Arm("head_vocabulary", "head, and facts of the user's relations", replace(_ALL, vocabulary=True), floor=0.2),
    META,
    Arm("encoder", "MiniLM with LoRA, 327", Learned(EncoderSettings(), more=True), floor=0.2),
    Arm("base", "the base with LoRA, 156", Learned(BaseSettings(), StageSettings(batch_size=8, steps=150)), floor=0.2),
)
SHAPES = (
    Arm("shape_as_is", "head, weights as they are", _ALL, shape="as_is"),
    Arm("shape_light_dropped", "head, below .2 of the largest dropped", _ALL, shape="light_dropped"),
    Arm("shape_top_tenth", "head, the 10 % with most weight", _ALL, shape="top_tenth"),
    Arm("shape_binarised", "head, 1 above half of the largest", _ALL, shape="binarised"),
    Arm("shape_max_normalised", "head, largest weight 1, loss over tokens", _ALL, shape="max_normalised"),
    Arm("shipped_light_dropped", "shipped head, below .2 dropped", Shipped("smollm2"), shape="light_dropped"),
    Arm("shipped_top_tenth", "shipped head, the 10 % with most weight", Shipped("smollm2"), shape="top_tenth"),
    Arm("shipped_binarised", "shipped head, 1 above half of the largest", Shipped("smollm2"), shape="binarised"),
)
INNER = (
    META,
    Arm("head_meta_2", "the same after 2 inner steps", replace(_ALL, meta=MetaSettings(inner_steps=2)), floor=0.2),
)
CURVES = tuple(
    replace(arm, name=f"{arm.name}_{LONG}", title=f"{arm.title}, {LONG} epochs", epochs=LONG)
    for arm in (UNIFORM, ORACLE, HEAD, SCORERS[0])
)
GROUPS: dict[str, tuple[Arm, ...]] = {
    "headline": (UNIFORM, ORACLE, SCORERS[0], HEAD),
    "rules": RULES,
    "scorers": SCORERS,
    "shapes": SHAPES,
    "inner": INNER,
    "curves": CURVES,
}
ARMS = {arm.name: arm for group in GROUPS.values() for arm in group}


def choose_arms(names: list[str]) -> list[Arm]:
    """Return the arms called so; the name of a group stands for its arms, "all" for every one.

    Raises:
        UsageError: an unknown name.
    """
    known = {name: (arm,) for name, arm in ARMS.items()} | GROUPS | {"all": tuple(ARMS.values())}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no arm {name!r}", action=nearest(name, known))
    return list({arm.name: arm for name in names for arm in known[name]}.values())


def title(name: str) -> str:
    """Return what the table prints for an arm; its name for one that an older version of this file had."""
    return ARMS[name].title if name in ARMS else name
