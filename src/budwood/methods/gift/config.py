"""`GiftConfig`, the PEFT configuration of GIFT."""

from __future__ import annotations

from dataclasses import dataclass, field

from peft import PeftConfig
from peft.utils import PeftType

from budwood.errors import ConfigError, nearest

SIDES = ("input", "output", "both")
INITS = ("psi_zero", "phi_zero")
NONLINEARITIES = ("identity", "gelu", "sigmoid", "mlp")


@dataclass
class GiftConfig(PeftConfig):
    """GIFT: Ŵ = W (I + s φψ) (input side) or (I + s φψ) W (output side), φ and ψ shared over a group of layers.

    Args:
        r: rank of φψ.
        gift_alpha: None for s = 1 (paper v3), a number for s = gift_alpha / r (v5).
        target_modules: names of linear layers (exact or the end of the full name), or one regular expression.
        exclude_modules: names that are left out.
        layers_to_transform: indices of the layers that are adapted; all by default.
        layers_pattern: name of the list of layers, where PEFT cannot guess it.
        modules_to_save: modules trained in full and saved beside φ and ψ, such as a classification head.
        bias: which biases of the base are trained: "none", "all" or "gift_only" (those of the adapted layers).
        fan_in_fan_out: kept for PEFT; the layout of the weight is read from the layer's class.
        side: "input", "output", "both", or a dict from target to one of them that has every target.
        share: "type" (one Θ per target), "all", "none" (one per module), or lists of targets that share. A list may
            name rows of a fused layer: with [["c_attn[0:768]"], ["c_attn[1536:2304]"]], GPT-2's q and v have a Θ each
            and k none. On the input side this is computed from the weight.
        share_depth: True shares over all layers, False gives each layer its own, n shares over blocks of n layers.
        group_ranks: ranks that differ from r, keyed by group: targets joined with "+", or one that is alone.
        gift_dropout: dropout of the vector that ψ reads.
        init_weights: True or "psi_zero" (ψ = 0), "phi_zero" (φ = 0); both make ΔW = 0. False: random, for tests.
        nonlinearity: g in ΔW = s g(W φ) ψ and ΔW = s φ g(ψ W): "identity" (the paper's final method), "gelu",
            "sigmoid", or "mlp" (g(c) = c + Θ₂ gelu(Θ₁ c/‖c‖), learned with the group). Others than the identity are
            computed from the weight, which a quantised base may not give. With True, "sigmoid" starts the output side
            at φ = 0, because g(0) is not 0.
        output_edits_bias: let the output side act on W x + b rather than on W x, as ReFT does. Cannot become a LoRA.

    Raises:
        ConfigError: (also a ValueError) a value that has no meaning, with what was wanted.
    """

    r: int = field(default=16, metadata={"help": "Rank of φψ."})
    gift_alpha: float | None = field(default=None, metadata={"help": "None: s = 1; else s = gift_alpha / r."})
    target_modules: list[str] | str | None = field(default=None, metadata={"help": "Linear layers to adapt."})
    exclude_modules: list[str] | str | None = field(default=None, metadata={"help": "Layers to leave out."})
    layers_to_transform: list[int] | int | None = field(default=None, metadata={"help": "Indices of the layers."})
    layers_pattern: list[str] | str | None = field(default=None, metadata={"help": "Name of the list of layers."})
    modules_to_save: list[str] | None = field(default=None, metadata={"help": "Modules trained and saved in full."})
    bias: str = field(default="none", metadata={"help": "Biases that are trained: none, all or gift_only."})
    fan_in_fan_out: bool = field(default=False, metadata={"help": "Read from the layer's class; kept for PEFT."})
    side: str | dict[str, str] = field(default="input", metadata={"help": "Where Θ acts: input, output or both."})
    share: str | list[list[str]] = field(default="type", metadata={"help": "type, all, none, or lists of names."})
    share_depth: bool | int = field(default=True, metadata={"help": "True, False, or layers per block."})
    group_ranks: dict[str, int] = field(default_factory=dict, metadata={"help": "Ranks by group."})
    gift_dropout: float = field(default=0.0, metadata={"help": "Dropout of the vector that ψ reads."})
    init_weights: bool | str = field(default=True, metadata={"help": "True, psi_zero, phi_zero or False."})
    nonlinearity: str = field(default="identity", metadata={"help": "identity, gelu, sigmoid or mlp."})
    output_edits_bias: bool = field(default=False, metadata={"help": "The output side acts on W x + b."})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = _peft_type()
        self.target_modules = _plain(self.target_modules)
        self.exclude_modules = _plain(self.exclude_modules)
        self._check()

    def _check(self) -> None:
        for name, rank in {"r": self.r, **self.group_ranks}.items():
            if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
                raise ConfigError(f"rank {name}={rank!r}", wanted="a whole number of at least 1")
        for side in self.side.values() if isinstance(self.side, dict) else [self.side]:
            _one_of("side", side, SIDES)
        _one_of("bias", self.bias, ("none", "all", "gift_only"))
        _one_of("nonlinearity", self.nonlinearity, NONLINEARITIES)
        if not isinstance(self.init_weights, bool):
            _one_of("init_weights", self.init_weights, INITS)
        if not 0 <= self.gift_dropout < 1:
            raise ConfigError(f"gift_dropout={self.gift_dropout}", wanted="a number from 0 to below 1")
        if not isinstance(self.share_depth, bool) and self.share_depth < 1:
            raise ConfigError(f"share_depth={self.share_depth}", wanted="True, False, or 1 or more layers per block")
        if isinstance(self.target_modules, str) and self.layers_to_transform is not None:
            raise ConfigError(
                "layers_to_transform together with a regular expression in target_modules",
                action="list the module names, or put the layers into the expression",
            )
        if self.layers_pattern and self.layers_to_transform is None:
            raise ConfigError("layers_pattern without layers_to_transform", action="give both, or neither")
        if self.nonlinearity != "identity":
            self._check_nonlinear()

    def _check_nonlinear(self) -> None:
        if self.output_edits_bias:
            raise ConfigError(
                f"output_edits_bias together with nonlinearity={self.nonlinearity!r}",
                wanted="the identity: a nonlinear update is made from the weight alone",
            )
        sides = set(self.side.values()) if isinstance(self.side, dict) else {self.side}
        wrong = {"psi_zero": {"output", "both"}, "phi_zero": {"input", "both"}}.get(str(self.init_weights), set())
        if self.nonlinearity == "sigmoid" and sides & wrong:
            raise ConfigError(
                f"init_weights={self.init_weights!r} with a sigmoid on the {' and '.join(sorted(sides & wrong))} side",
                wanted="a start at ΔW = 0, and the sigmoid of 0 is 1/2",
                action="set init_weights=True, which takes the factor outside the sigmoid",
            )

    def side_of(self, kind: str) -> str:
        """Return the side of a kind of module."""
        if not isinstance(self.side, dict):
            return self.side
        if kind not in self.side:
            raise ConfigError(
                f"side names no side for {kind!r}",
                wanted="an entry for every adapted module",
                action=f"add it to side, which has {', '.join(sorted(self.side))}",
            )
        return self.side[kind]

    def scale(self, rank: int) -> float:
        """Return s for a group of this rank."""
        return 1.0 if self.gift_alpha is None else self.gift_alpha / rank

    def init_at(self, place: str) -> str:
        """Return which factor starts at zero, as the generator names it."""
        if isinstance(self.init_weights, str):
            return self.init_weights
        if not self.init_weights:
            return "random"
        return "phi_zero" if self.nonlinearity == "sigmoid" and place == "output" else "psi_zero"


def _plain(names: list[str] | set[str] | str | None) -> list[str] | str | None:
    """Return a sorted list for any collection of names, so that the saved JSON is the same every time."""
    return names if names is None or isinstance(names, str) else sorted(names)


def _one_of(field_name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{field_name}={value!r}", wanted=f"one of {', '.join(known)}", action=nearest(value, known))


def _peft_type() -> PeftType:
    try:
        return PeftType("GIFT")
    except ValueError:
        raise ConfigError(
            "PEFT does not know GIFT yet",
            action="import it as `from budwood import GiftConfig`, which registers it with PEFT",
        ) from None
