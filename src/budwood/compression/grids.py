"""Grids of few levels, and rounding to the nearest of them.

A grid belongs to one group of inputs of one row: ŵ = δ (q − q₀), q = clamp(round(w / δ) + q₀, 0, 2^bits − 1).

    asymmetric   δ = (max(w, 0) − min(w, 0)) / (2^bits − 1),   q₀ = round(−min(w, 0) / δ)
    symmetric    δ = 2 max|w| / (2^bits − 1),                  q₀ = 2^(bits − 1)

Zero is a level of either, so zeros stay zeros. δ is rounded to fp16, in which it would be stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """The levels of one or more groups; δ and q₀ have the shape of the weights with 1 in the last place.

    Attributes:
        step: δ, above 0.
        zero: q₀, a whole number.
        top: the highest level, 2^bits − 1.
    """

    step: Float[Tensor, "*groups 1"]
    zero: Float[Tensor, "*groups 1"]
    top: int

    def round(self, weight: Float[Tensor, "*groups n"]) -> Float[Tensor, "*groups n"]:
        """Return the nearest level of each weight."""
        levels = torch.clamp(torch.round(weight / self.step) + self.zero, 0, self.top)
        return self.step * (levels - self.zero)


def fit_grid(weight: Float[Tensor, "*groups n"], bits: int, *, symmetric: bool) -> Grid:
    """Return the grid of each group; the last dimension is the inputs that share one."""
    top = 2**bits - 1
    low, high = weight.amin(-1, keepdim=True).clamp(max=0), weight.amax(-1, keepdim=True).clamp(min=0)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    step = ((high - low) / top).half().to(weight.dtype)
    step = torch.where(step > 0, step, 1)  # a group of zeros, or of numbers too small for fp16
    zero = torch.full_like(step, 2 ** (bits - 1)) if symmetric else torch.round(-low / step)
    return Grid(step, zero.clamp(0, top), top)


def rtn(weight: Float[Tensor, "d_out d_in"], *, bits: int, group: int, symmetric: bool) -> Float[Tensor, "d_out d_in"]:
    """Round each weight to the nearest level of its group's grid."""
    groups = weight.unflatten(1, (-1, group))
    return fit_grid(groups, bits, symmetric=symmetric).round(groups).flatten(1)
