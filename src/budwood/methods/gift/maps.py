"""What GIFT's components look at: maps of tokens, one for each column of C = W φ.

Paper: https://arxiv.org/abs/2312.00700, section on interpretability. For a layer with weight W (d_out, d_in) on the
input side, C = W φ (d_out, r) holds one direction a component, and M = Cᵀ Yᵀ (r, n) says how strongly each of the n
tokens of the layer's output Y (n, d_out) points there. No supervision and no threshold is involved. Single components
are not identifiable, since (φR, R⁻¹ψ) is the same adapter: look at the canonical form too (`tuning.edits.canonical`).
"""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from budwood.errors import UsageError


def token_maps(directions: Float[Tensor, "d r"], outputs: Float[Tensor, "n d"]) -> Float[Tensor, "r n"]:
    """Return M = Cᵀ Yᵀ, each map stretched to [0, 1]; a constant map becomes 0."""
    return _stretched(directions.T @ outputs.T)


def image_maps(
    directions: Float[Tensor, "d r"], outputs: Float[Tensor, "n d"], size: tuple[int, int] | None = None
) -> Float[Tensor, "r h w"]:
    """Return the maps of a vision transformer as pictures, in [0, 1].

    Args:
        directions: C = W φ of a layer.
        outputs: Y, the layer's output for one image: the class token first, then the patches of a square grid.
        size: height and width to stretch the maps to, bilinearly; the grid itself by default.

    Raises:
        UsageError: the patches form no square.
    """
    side = math.isqrt(len(outputs) - 1)
    if side < 1 or side**2 != len(outputs) - 1:
        raise UsageError(f"{len(outputs)} tokens", wanted="a class token and a square number of patches")
    maps = (directions.T @ outputs[1:].T).unflatten(1, (side, side))
    if size is not None:
        maps = F.interpolate(maps[None], size=size, mode="bilinear", align_corners=False)[0]
    return _stretched(maps.flatten(1)).view_as(maps)


def _stretched(maps: Float[Tensor, "r n"]) -> Float[Tensor, "r n"]:
    """Return each row moved and scaled to [0, 1]."""
    low, high = maps.amin(1, keepdim=True), maps.amax(1, keepdim=True)
    return (maps - low) / (high - low).where(high > low, 1)
