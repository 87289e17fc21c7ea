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

A *bend* g puts a nonlinear function where the map meets W, on r channels: g(W U) in place of W U, and g(V W) in place
of V W. The update is then no longer linear in W, but it is a LoRA all the same.

Letters are listed in docs/notation.md. Shapes: W (d_out, d_in), x (…, d_in).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from budwood.tuning.factors import LoraFactors

Place = Literal["input", "output", "parallel"]
Bend = Callable[[Float[Tensor, "n r"]], Float[Tensor, "n r"]]


class Weight(Protocol):
    """W (d_out, d_in): a tensor, or a layer that is run in place of one (`opaque.OpaqueWeight`)."""

    device: torch.device
    dtype: torch.dtype

    def __matmul__(self, right: Float[Tensor, "d_in r"]) -> Float[Tensor, "d_out r"]: ...

    def __rmatmul__(self, left: Float[Tensor, "r d_out"]) -> Float[Tensor, "r d_in"]: ...


@dataclass(frozen=True)
class LowRankMap:
    """v -> scale · up (down v): `down` (r, d), `up` (d', r); `bend` is g, None for the identity."""

    up: Float[Tensor, "d_to r"]
    down: Float[Tensor, "r d_from"]
    scale: float
    bend: Bend | None = None

    def to(self, like: Any) -> LowRankMap:
        """Return the map with device and dtype of `like`, a tensor or a weight."""
        up, down = self.up.to(like.device, like.dtype), self.down.to(like.device, like.dtype)
        return LowRankMap(up, down, self.scale, self.bend)

    def bent(self, rows: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        """Return g(rows)."""
        return rows if self.bend is None else self.bend(rows)


Edit = dict[Place, LowRankMap]
"""What one adapter does to one layer: a low-rank map for each place that it uses."""


def lora_factors(weight: Weight | Float[Tensor, "d_out d_in"], edit: Edit) -> LoraFactors:
    """Return A (Σr, d_in) and B (d_out, Σr) with ΔW = B A, in the dtype of `weight`.

    Exact: no decomposition, and the cross term of a two-sided edit is included.
    """
    maps = {place: low_rank.to(weight) for place, low_rank in edit.items()}
    inner, outer, beside = maps.get("input"), maps.get("output"), maps.get("parallel")
    rows, columns = [], []
    if inner:
        columns.append(inner.scale * inner.bent(weight @ inner.up))
        rows.append(inner.down)
    if outer:
        read = outer.down @ weight
        if inner:  # the output side reads W as the input side has changed it
            read = read + (outer.down @ columns[0]) @ inner.down
        columns.append(outer.scale * outer.up)
        rows.append(outer.bent(read.T).T)
    if beside:
        columns.append(beside.scale * beside.up)
        rows.append(beside.down)
    return LoraFactors(A=torch.cat(rows), B=torch.cat(columns, dim=1))


def delta_weight(weight: Weight | Float[Tensor, "d_out d_in"], edit: Edit) -> Float[Tensor, "d_out d_in"]:
    """Return ΔW = Ŵ − W in the dtype of `weight`, without subtracting two large matrices."""
    factors = lora_factors(weight, edit)
    return factors.B @ factors.A


def delta_bias(bias: Float[Tensor, " d_out"], edit: Edit) -> Float[Tensor, " d_out"]:
    """Return the change of the bias where the output edit acts on y rather than on W x: s U V b."""
    outer = edit["output"].to(bias)
    return outer.scale * (outer.up @ (outer.down @ bias))


def canonical(
    up: Float[Tensor, "d_to r"], down: Float[Tensor, "r d_from"]
) -> tuple[Float[Tensor, "d_to r"], Float[Tensor, "r d_from"]]:
    """Return the one pair among all (U R, R⁻¹ V), which make the same map, that is balanced, ordered and signed.

    U V = P Σ Qᵀ is its singular value decomposition, computed from the r x r core; the pair is (P Σ^½, Σ^½ Qᵀ) with
    falling Σ, and the largest entry of each column of U is positive. Unique where the singular values differ.
    """
    q_up, r_up = torch.linalg.qr(up)
    q_down, r_down = torch.linalg.qr(down.T)
    left, sizes, right = torch.linalg.svd(r_up @ r_down.T)
    root = sizes.sqrt()
    new_up, new_down = (q_up @ left) * root, (right @ q_down.T) * root[:, None]
    largest = new_up.gather(0, new_up.abs().argmax(0, keepdim=True)).squeeze(0)
    sign = torch.where(largest < 0, -1.0, 1.0).to(up.dtype)
    return new_up * sign, new_down * sign[:, None]
