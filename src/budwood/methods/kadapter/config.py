"""`KAdapterConfig`, the PEFT configuration of K-Adapter, and the places of a model that it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from peft import PeftConfig
from peft.utils import PeftType
from torch import nn
from transformers import PreTrainedModel

from budwood.errors import ConfigError, NotSupportedError
from budwood.training.blocks import find_blocks


@dataclass
class KAdapterConfig(PeftConfig):
    """K-Adapter: h_i = h_{i−1} + U_i g(V_i n(HS_i + h_{i−1})), and the last one is added to what the head reads.

    Args:
        width: hidden units of each side block.
        reads: indices of the layers whose output is read, in order.
        target_modules: the name of the norm behind the last layer; its output is what is added to.
        exclude_modules: PEFT asks each configuration for it.

    Raises:
        ConfigError: (also a ValueError) a value that has no meaning, with what was wanted.
    """

    width: int = field(default=128, metadata={"help": "Hidden units of each side block."})
    reads: list[int] = field(default_factory=list, metadata={"help": "Layers whose output is read."})
    target_modules: list[str] | str | None = field(default=None, metadata={"help": "The norm behind the last layer."})
    exclude_modules: list[str] | str | None = field(default=None, metadata={"help": "Modules to leave out."})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType("KADAPTER")
        if self.width < 1:
            raise ConfigError(f"width={self.width!r}", wanted="a whole number of at least 1")
        if not self.reads or list(self.reads) != sorted(set(self.reads)):
            raise ConfigError(f"reads={self.reads!r}", wanted="indices of layers, each once and in order")


def read_layers(model: PreTrainedModel, wanted: Sequence[int] | None) -> list[int]:
    """Return the layers that are read: those wanted, else the first, the middle one and the last, as in the paper.

    Raises:
        ConfigError: the model has no such layer.
        NotSupportedError: it has no one list of layers.
    """
    depth = len(find_blocks(model)[1])
    if wanted is None:
        return sorted({0, depth // 2, depth - 1})
    if unknown := [layer for layer in wanted if not 0 <= layer < depth]:
        raise ConfigError(f"the layer {unknown[0]} of {depth}", wanted=f"0 to {depth - 1}", action="set tuner.reads")
    return sorted(set(wanted))


def last_norm(model: PreTrainedModel) -> str:
    """Return the name of the norm between the last layer and the head: the only one beside the list of layers.

    Raises:
        NotSupportedError: there is none, or more than one.
    """
    name, _ = find_blocks(model)
    prefix = name.rpartition(".")[0]
    beside = model.get_submodule(prefix).named_children()
    norms = [child for child, module in beside if _is_norm(module)]
    if len(norms) != 1:
        raise NotSupportedError(
            f"{type(model).__name__} has {len(norms)} norms beside its layers",
            wanted="one, between the last layer and the head",
            action="choose another tuner, such as lora",
        )
    return f"{prefix}.{norms[0]}" if prefix else norms[0]


def _is_norm(module: nn.Module) -> bool:
    if hasattr(module, "base_layer"):  # one that carries an adapter already
        return _is_norm(module.base_layer)
    weight = getattr(module, "weight", None)
    return not list(module.children()) and weight is not None and weight.dim() == 1
