"""y + s U V v in as few passes over memory as autograd allows: the inner loop of every shared tuner."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

FEW_ROWS = 64  # up to here a bf16 product on a CPU spends its time on being set up


def add_low_rank(
    y: Float[Tensor, "*b d_to"],
    v: Float[Tensor, "*b d_from"],
    up: Float[Tensor, "d_to r"],
    down: Float[Tensor, "r d_from"],
    scale: float,
) -> Float[Tensor, "*b d_to"]:
    """Return y + scale · up (down v) in the dtype of `y`.

    Where y and v are bf16 and the map is fp32, the products are made in bf16 and summed up in fp32 inside each
    product, as under autocast. The result is rounded to bf16 in any case, so wider products only cost time: half of
    what the map adds to a training step on a CPU that multiplies in bf16. With few rows, as in decoding on a CPU,
    setting up a bf16 product takes longer than a small fp32 one. Everywhere else products and sum are made in the
    dtype of the map and cast once.
    """
    if torch.is_autocast_enabled(y.device.type):  # addmm would cast y as well
        return (y + F.linear(F.linear(v, down) * scale, up)).to(y.dtype)
    few = v.is_cpu and v.numel() <= FEW_ROWS * v.shape[-1]
    if y.dtype == v.dtype == torch.bfloat16 and not few:
        up, down = up.to(y.dtype), down.to(y.dtype)
    if y.dtype != up.dtype or v.dtype != down.dtype:
        wide = y.to(up.dtype)
        return add_low_rank(wide, wide if v is y else v.to(down.dtype), up, down, scale).to(y.dtype)
    if few and not torch.is_grad_enabled():
        return torch.add(y, F.linear(F.linear(v, down), up), alpha=scale)
    # One product that starts from y: a pass over y less than a product and a sum.
    hidden = F.linear(v.reshape(-1, v.shape[-1]), down)
    return torch.addmm(y.reshape(-1, y.shape[-1]), hidden, up.t(), alpha=scale).view(y.shape)
