"""How much memory a training step takes, from the shapes alone: four terms, each stated in `FORMULA`.

Checked against what autograd keeps (tests/test_memory.py): for Llama, Qwen2 and GPT-2 shapes, GIFT and LoRA, fp32 and
bf16, the term of the activations is between 0.55 and 1.5 times the truth. Not counted: the framework itself, what the
allocator wastes, and temporary buffers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from budwood.models import Site
from budwood.training.head import CHUNK_BYTES

FORMULA = (
    "base = parameters x bytes of its precision; adapter = 16 bytes a trained number (weight, gradient, two moments);"
    " activations = batch x longest row x the sum over linear layers of (in + out) x bytes, and 4 bytes more for each"
    " input of an adapted layer where the base has 16 bits; with checkpointing, the layers' inputs and one layer's"
    " activations; on a CPU in bf16 with short rows, 7 bytes more for each pair of tokens in each head of a layer;"
    " logits = trained tokens of a batch x vocabulary x (8 + bytes), of at most"
    f" {CHUNK_BYTES // 2**22} million numbers at a time"
)
# Bytes a weight of a linear layer takes when quantised at load time, its scales included: blocks of 64 with an 8-bit
# scale each and an fp32 scale for 256 of them (nf4), or an fp32 scale each (fp4).
QUANTISED_BYTES = {"nf4": 0.516, "fp4": 0.5625, "int8": 1.0, "int8wo": 1.0}
ADAPTER_BYTES = 16
MIB = 2**20


@dataclass(frozen=True)
class BatchShape:
    """The largest batch.

    Args:
        rows: how many rows pass through the model together.
        length: tokens of the longest row.
        trained: tokens of a row that the loss falls on.
    """

    rows: int
    length: int
    trained: int


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes, by what they are for."""

    base: int
    adapter: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        return self.base + self.adapter + self.activations + self.logits

    def to_dict(self) -> dict[str, Any]:
        """Return MiB, rounded, with the total."""
        return {name: round(size / MIB, 1) for name, size in {**vars(self), "total": self.total}.items()}


def base_bytes(parameters: int, sites: Sequence[Site], dtype: torch.dtype, quantisation: str | None) -> int:
    """Return the bytes of the base's weights.

    Args:
        parameters: how many numbers they are.
        sites: the linear layers, which are what quantisation applies to.
        dtype: of all that is not quantised.
        quantisation: a key of `QUANTISED_BYTES`, or None.
    """
    if quantisation is None:
        return parameters * dtype.itemsize
    linear = sum(site.in_features * site.out_features for site in sites)
    return round(linear * QUANTISED_BYTES[quantisation]) + (parameters - linear) * dtype.itemsize


def activation_bytes(
    sites: Sequence[Site], widened: Collection[str], batch: BatchShape, dtype: torch.dtype, checkpointing: bool
) -> int:
    """Return the bytes that autograd keeps between the forward and the backward pass, logits left out.

    Args:
        sites: the linear layers of the base.
        widened: the names of those whose input is kept in fp32 too if the base has less, as PEFT's own tuners do.
        checkpointing: whether layers are computed a second time instead of being kept.
    """
    size = dtype.itemsize
    by_layer: dict[int, int] = {}
    for site in sites:
        cast = 4 * site.in_features if site.name in widened and size < 4 else 0
        kept = (site.in_features + site.out_features) * size + cast
        by_layer[site.layer] = by_layer.get(site.layer, 0) + kept
    a_token = sum(by_layer.values())
    if checkpointing and by_layer:
        narrowest = min(site.in_features for site in sites)  # the width between the layers
        a_token = max(by_layer.values()) + len(by_layer) * narrowest * size
    return batch.rows * batch.length * a_token


def logit_bytes(batch: BatchShape, vocabulary: int, dtype: torch.dtype) -> int:
    """Return the bytes of logits, their fp32 copy and its softmax.

    They are made for the trained tokens only, and a chunk at a time. A model that changes what its head gives (a soft
    cap, a scale) takes more: all chunks at once.
    """
    return min(batch.rows * batch.trained * vocabulary, CHUNK_BYTES // 4) * (8 + dtype.itemsize)
