"""Factor pairs as a file holds them: one rank, one precision, finite; and the output layer that no file can hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from budwood.errors import AdapterError, NotSupportedError
from budwood.tuning.factors import LoraFactors


def padded_pairs(factors: Mapping[str, LoraFactors], rank: int, dtype: torch.dtype) -> dict[str, LoraFactors]:
    """Return A (rank, d_in) and B (d_out, rank) of each module, on the CPU in `dtype`. The padding is zero: B A stays.

    Raises:
        AdapterError: a factor is not finite, or does not fit into `dtype`.
    """
    pairs = {}
    for name, (a, b) in factors.items():
        missing = rank - a.shape[0]
        pairs[name] = LoraFactors(
            A=_stored(name, nn.functional.pad(a, (0, 0, 0, missing)), dtype),
            B=_stored(name, nn.functional.pad(b, (0, missing)), dtype),
        )
    return pairs


def _stored(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    stored = tensor.detach().to("cpu", dtype).contiguous()
    if not torch.isfinite(stored).all():
        finite = bool(torch.isfinite(tensor).all())
        raise AdapterError(
            f"{name}: a factor {f'is too large for {dtype}' if finite else 'is NaN or infinite'}",
            wanted="finite numbers",
            action="export as bfloat16 or float32" if finite else "train again with a lower learning rate",
        )
    return stored


def refuse_tied_head(base: nn.Module) -> None:
    """Refuse an adapted output layer whose weight is the embedding: llama.cpp and others have one tensor for both.

    Raises:
        NotSupportedError: the output layer is adapted and tied.
    """
    if not isinstance(base, PreTrainedModel):
        return
    head, embedding = base.get_output_embeddings(), base.get_input_embeddings()
    if isinstance(head, BaseTunerLayer) and head.weight is embedding.weight:
        raise NotSupportedError(
            f"{name_of_head(base)}: the output layer is adapted, and its weight is tied to the embedding",
            wanted="an adapter that leaves the tied output layer alone",
            action="keep it as a PEFT folder; PEFT is what reads it",
        )


def name_of_head(base: PreTrainedModel) -> str:
    """Return the module name of the output layer, or nothing."""
    head = base.get_output_embeddings()
    return next((name for name, module in base.named_modules() if head is not None and module is head), "")


def changes_nothing(factors: Mapping[str, LoraFactors]) -> bool:
    """Whether ΔW of every module is zero."""
    return not any(pair.A.any() and pair.B.any() for pair in factors.values())
