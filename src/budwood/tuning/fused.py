"""y + s U V v in as few passes over memory as autograd allows: the inner loop of every shared tuner."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def add_low_rank(
    y: Float[Tensor, "*b d_to"],
    v: Float[Tensor, "*b d_from"],
    up: Float[Tensor, "d_to r"],
    down: Float[Tensor, "r d_from"],
    scale: float,
) -> Float[Tensor, "*b d_to"]:
    """Return y + scale · up (down v) in the dtype of `y`.

    Products and sum are made in the dtype of `up` and `down`, and cast once.
    """
    if torch.is_autocast_enabled(y.device.type):  # addmm would cast y as well
        return (y + F.linear(F.linear(v, down) * scale, up)).to(y.dtype)
    if y.dtype != up.dtype or v.dtype != down.dtype:
        wide = y.to(up.dtype)
        return add_low_rank(wide, wide if v is y else v.to(down.dtype), up, down, scale).to(y.dtype)
    # One product that starts from y: a pass over y less than a product and a sum.
    hidden = F.linear(v.reshape(-1, v.shape[-1]), down)
    return torch.addmm(y.reshape(-1, y.shape[-1]), hidden, up.t(), alpha=scale).view(y.shape)
