"""One linear layer: its weight as (d_out, d_in), compressed by the method of the settings, and what that cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from budwood.compression.grams import relative_error
from budwood.compression.grids import rtn
from budwood.compression.masks import magnitude, wanda
from budwood.compression.settings import Compression
from budwood.compression.surgeon import gptq, sparsegpt
from budwood.errors import NotSupportedError
from budwood.models.sites import Site


@dataclass(frozen=True)
class LayerReport:
    """What compression did to a layer.

    Attributes:
        name: of the module.
        role: what it is for ("q", "down", …), or None.
        weights: how many it has.
        zeros: share of them that are 0 now.
        error: ‖W X − Ŵ X‖ / ‖W X‖ over the calibration text; ‖W − Ŵ‖ / ‖W‖ without one.
    """

    name: str
    role: str | None
    weights: int
    zeros: float
    error: float

    def to_dict(self) -> dict[str, Any]:
        """The report as `compression.json` keeps it."""
        return asdict(self)


def compressed(
    weight: Float[Tensor, "d_out d_in"], gram: Float[Tensor, "d_in d_in"] | None, settings: Compression
) -> Float[Tensor, "d_out d_in"]:
    """Return the weight that the settings make of `weight`.

    Args:
        weight: in fp32 or fp64.
        gram: H of what the layer reads; may be None for methods that need no text.
        settings: settled ones.
    """
    if settings.kind == "bits":
        assert settings.bits is not None and settings.group is not None and settings.act_order is not None
        if settings.method == "rtn":
            return rtn(weight, bits=settings.bits, group=settings.group, symmetric=settings.symmetric)
        assert gram is not None
        return gptq(
            weight,
            gram,
            bits=settings.bits,
            group=settings.group,
            symmetric=settings.symmetric,
            act_order=settings.act_order,
            damping=settings.damping,
        )
    assert settings.sparsity is not None
    sparsity, pattern = settings.sparsity, settings.pattern
    if settings.method == "magnitude":
        return magnitude(weight, sparsity=sparsity, pattern=pattern)
    assert gram is not None
    if settings.method == "wanda":
        return wanda(weight, gram, sparsity=sparsity, pattern=pattern)
    return sparsegpt(weight, gram, sparsity=sparsity, pattern=pattern, damping=settings.damping)


def compress_layer(
    layer: nn.Module, site: Site, gram: Float[Tensor, "d_in d_in"] | None, settings: Compression
) -> LayerReport:
    """Compress a layer's weight in place, rounded to the precision it had.

    Raises:
        NotSupportedError: the weight is packed, or it, what the layer reads or the outcome is not finite.
    """
    stored = layer.weight
    if type(stored.data) is not Tensor or not stored.is_floating_point():
        raise NotSupportedError(f"{site.name} is a {type(layer).__name__}", wanted="a layer with a plain weight")
    transposed = isinstance(layer, Conv1D)  # keeps (d_in, d_out)
    weight = (stored.T if transposed else stored).detach().float()
    if not torch.isfinite(weight).all():
        raise NotSupportedError(f"the weight of {site.name} holds NaN or infinities", wanted="finite weights")
    made = compressed(weight, gram, settings).to(stored.dtype)
    error = relative_error(weight, made.float(), gram)  # before the copy: in fp32 `weight` is the stored one
    if not math.isfinite(error):
        raise NotSupportedError(
            f"the error of {site.name} is {error}", wanted="finite weights and inputs", action="take --dtype float32"
        )
    stored.data.copy_(made.T if transposed else made)
    return LayerReport(site.name, site.role, made.numel(), (made == 0).float().mean().item(), error)


def summary(layers: Sequence[LayerReport]) -> dict[str, Any] | None:
    """Return the mean error of layers, the largest and where it is, and the share of zeros; None without layers."""
    if not layers:
        return None
    worst = max(layers, key=lambda layer: layer.error)
    return {
        "mean": sum(layer.error for layer in layers) / len(layers),
        "largest": worst.error,
        "largest_at": worst.name,
        "zeros": sum(layer.zeros * layer.weights for layer in layers) / sum(layer.weights for layer in layers),
    }
