"""`SharedLoraConfig`, the PEFT configuration of shared LoRA."""

from __future__ import annotations

from dataclasses import dataclass, field

from peft import PeftConfig
from peft.utils import PeftType

from budwood.errors import ConfigError


@dataclass
class SharedLoraConfig(PeftConfig):
    """Shared LoRA: Ŵ = W + s B A, with the same A and B for all layers of a kind.

    Args:
        r: rank of BA.
        lora_alpha: s = lora_alpha / r.
        target_modules: names of linear layers (exact or the end of the full name), or one regular expression; a kind
            is what one of these names matches.
        exclude_modules: names that are left out.
        layers_to_transform: indices of the layers that are adapted; all by default.
        layers_pattern: name of the list of layers, where PEFT cannot guess it.
        modules_to_save: modules trained in full and saved beside A and B, such as a classification head.
        bias: which biases of the base are trained: "none", "all" or "shared_lora_only" (those of the adapted layers).
        lora_dropout: dropout of the vector that A reads.

    Raises:
        ConfigError: (also a ValueError) a value that has no meaning, with what was wanted.
    """

    r: int = field(default=16, metadata={"help": "Rank of BA."})
    lora_alpha: float = field(default=32, metadata={"help": "s = lora_alpha / r."})
    target_modules: list[str] | str | None = field(default=None, metadata={"help": "Linear layers to adapt."})
    exclude_modules: list[str] | str | None = field(default=None, metadata={"help": "Layers to leave out."})
    layers_to_transform: list[int] | int | None = field(default=None, metadata={"help": "Indices of the layers."})
    layers_pattern: list[str] | str | None = field(default=None, metadata={"help": "Name of the list of layers."})
    modules_to_save: list[str] | None = field(default=None, metadata={"help": "Modules trained and saved in full."})
    bias: str = field(default="none", metadata={"help": "Trained biases: none, all or shared_lora_only."})
    lora_dropout: float = field(default=0.0, metadata={"help": "Dropout of the vector that A reads."})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType("SHARED_LORA")
        for name in ("target_modules", "exclude_modules"):  # sorted, so that the saved JSON is the same every time
            given = getattr(self, name)
            setattr(self, name, given if given is None or isinstance(given, str) else sorted(given))
        if self.r < 1:
            raise ConfigError(f"rank r={self.r!r}", wanted="a whole number of at least 1")
        if not 0 <= self.lora_dropout < 1:
            raise ConfigError(f"lora_dropout={self.lora_dropout}", wanted="a number from 0 to below 1")
        if self.bias not in ("none", "all", "shared_lora_only"):
            raise ConfigError(f"bias={self.bias!r}", wanted="none, all or shared_lora_only")
