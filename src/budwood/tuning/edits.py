"""The maths of a low-rank edit of one linear layer, as functions of tensors.

A layer computes y = W x + b. A *low-rank map* is v -> s · U (V v), with V (r, d) and U (d', r). It can act at three
places, and every tuner whose parameters are shared over layers is a choice among them:

    input      y = W (x + s U V x) + b        ΔW = s W U V            GIFT, input side    (U = φ, V = ψ)
    output     y = b + (I + s U V) (W x)      ΔW = s U V W            GIFT, output side
    parallel   y = W x + b + s U V x          ΔW = s U V              shared LoRA         (U = B, V = A)

Input and output compose: Ŵ = (I + s_o U_o V_o) W (I + s_i U_i V_i). Each case is exactly a LoRA of rank Σ r:

    input      B = s W U             A = V
    output     B = s U               A = V W
    both       B = [s_i W U_i, s_o U_o]        A = [V_i ; V_o W (I + s_i U_i V_i)]
    parallel   B = s U               A = V

Letters are listed in docs/notation.md. Shapes: W (d_out, d_in), x (…, d_in).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from budwood.tuning.factors import LoraFactors

Place = Literal["input", "output", "parallel"]


@dataclass(frozen=True)
class LowRankMap:
    """v -> scale · up (down v): `down` (r, d), `up` (d', r)."""

    up: Float[Tensor, "d_to r"]
    down: Float[Tensor, "r d_from"]
    scale: float

    def to(self, like: Tensor) -> LowRankMap:
        """Return the map with device and dtype of `like`."""
        return LowRankMap(self.up.to(like.device, like.dtype), self.down.to(like.device, like.dtype), self.scale)


Edit = dict[Place, LowRankMap]
"""What one adapter does to one layer: a low-rank map for each place that it uses."""


def lora_factors(weight: Float[Tensor, "d_out d_in"], edit: Edit) -> LoraFactors:
    """Return A (Σr, d_in) and B (d_out, Σr) with ΔW = B A, in the dtype of `weight`.

    Exact: no decomposition, and the cross term of a two-sided edit is included.
    """
    maps = {place: low_rank.to(weight) for place, low_rank in edit.items()}
    inner, outer, beside = maps.get("input"), maps.get("output"), maps.get("parallel")
    rows, columns = [], []
    if inner:
        columns.append(inner.scale * (weight @ inner.up))
        rows.append(inner.down)
    if outer:
        read = outer.down @ weight
        if inner:
            read = read + inner.scale * (read @ inner.up) @ inner.down
        columns.append(outer.scale * outer.up)
        rows.append(read)
    if beside:
        columns.append(beside.scale * beside.up)
        rows.append(beside.down)
    return LoraFactors(A=torch.cat(rows), B=torch.cat(columns, dim=1))


def delta_weight(weight: Float[Tensor, "d_out d_in"], edit: Edit) -> Float[Tensor, "d_out d_in"]:
    """Return ΔW = Ŵ − W in the dtype of `weight`, without subtracting two large matrices."""
    factors = lora_factors(weight, edit)
    return factors.B @ factors.A


def delta_bias(bias: Float[Tensor, " d_out"], edit: Edit) -> Float[Tensor, " d_out"]:
    """Return the change of the bias where the output edit acts on y rather than on W x: s U V b."""
    outer = edit["output"].to(bias)
    return outer.scale * (outer.up @ (outer.down @ bias))
