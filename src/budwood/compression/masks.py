"""Which weights of a row are kept: those with the highest scores, a share of them or so many side by side."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from budwood.compression.settings import Pattern


def keep_highest(
    scores: Float[Tensor, "rows n"], sparsity: float, pattern: Pattern | None = None
) -> Bool[Tensor, "rows n"]:
    """Return where the scores of each row are highest; of equal ones the later are kept.

    Args:
        scores: one row for each set of weights that compete.
        sparsity: share of a row that is not kept, rounded to whole weights.
        pattern: keep so many of each so many side by side instead; divides n.
    """
    if pattern is not None:
        sides = scores.reshape(-1, pattern.of)
        return keep_highest(sides, 1 - pattern.kept / pattern.of).reshape(scores.shape)
    dropped = scores.argsort(dim=1, stable=True)[:, : round(sparsity * scores.shape[1])]
    return torch.ones_like(scores, dtype=torch.bool).scatter_(1, dropped, False)


def magnitude(
    weight: Float[Tensor, "d_out d_in"], *, sparsity: float, pattern: Pattern | None = None
) -> Float[Tensor, "d_out d_in"]:
    """Keep the weights of each row with the largest |W_ij|."""
    return weight * keep_highest(weight.abs(), sparsity, pattern)


def wanda(
    weight: Float[Tensor, "d_out d_in"],
    gram: Float[Tensor, "d_in d_in"],
    *,
    sparsity: float,
    pattern: Pattern | None = None,
) -> Float[Tensor, "d_out d_in"]:
    """Keep the weights of each row with the largest |W_ij| ‖x_j‖ (Wanda, equation 1); ‖x_j‖² is H_jj."""
    return weight * keep_highest(weight.abs() * gram.diagonal().sqrt(), sparsity, pattern)
