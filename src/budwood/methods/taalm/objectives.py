"""What a scorer of tokens is trained to do with known J_t, and how well it does.

z_t = J_t / max_s |J_s| makes texts comparable. With scores f_t over the tokens of a text:

    regression     mean_t (f_t − 3 z_t)²
    list           cross-entropy of softmax(f) to max(z, 0) / Σ max(z, 0)      (a text without z > 0 says nothing)
    first_order    −Σ_t p_t z_t − β H(p),   p = softmax(f)

The last is the drop of the outer loss to first order in the learning rate, for one step with the weights p on the
text, so it is TAALM's own objective (arXiv 2407.16920) where J_t is all that is known of it. β keeps p from collapsing
onto one token before the others have been compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Objective: TypeAlias = Literal["regression", "list", "first_order"]
Scores: TypeAlias = Float[Tensor, "*members rows T"]
Mask: TypeAlias = Bool[Tensor, "rows T"]

ENTROPY_BONUS = 0.02  # β
REGRESSION_SCALE = 3.0  # f_t spans about as much as the scores that the other objectives lead to


def standardised(importance: Float[Tensor, "rows T"], mask: Mask) -> Float[Tensor, "rows T"]:
    """Return z_t; 0 outside the mask and in a row whose J_t are all 0."""
    inside = torch.where(mask, importance, 0)
    largest = inside.abs().amax(dim=1, keepdim=True)
    return torch.where(largest == 0, 0, inside / largest)


def regression(scores: Scores, z: Float[Tensor, "rows T"], mask: Mask) -> Tensor:
    """Return the mean squared error, each text alike."""
    error = torch.where(mask, scores - REGRESSION_SCALE * z, 0).square()
    return (error.sum(dim=-1) / mask.sum(dim=-1)).mean()


def ranked_list(scores: Scores, z: Float[Tensor, "rows T"], mask: Mask) -> Tensor:
    """Return the mean cross-entropy over texts with some z > 0."""
    helpful = z.clamp_min(0)
    total = helpful.sum(dim=-1)
    share = helpful / torch.where(total > 0, total, 1)[:, None]
    loss = -(share * torch.where(mask, log_shares(scores, mask), 0)).sum(dim=-1)
    return loss.sum(dim=-1).mean() / (total > 0).sum().clamp_min(1)


def first_order(scores: Scores, z: Float[Tensor, "rows T"], mask: Mask) -> Tensor:
    """Return the mean first-order outer loss over texts, less the entropy bonus."""
    logs = log_shares(scores, mask)
    p = logs.exp()
    spread = -(p * torch.where(mask, logs, 0)).sum(dim=-1)
    return (-(p * z).sum(dim=-1) - ENTROPY_BONUS * spread).mean()


OBJECTIVES: dict[Objective, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "regression": regression,
    "list": ranked_list,
    "first_order": first_order,
}


def log_shares(scores: Scores, mask: Mask) -> Scores:
    """Return log softmax over the masked tokens of each row; −∞ elsewhere."""
    return torch.where(mask, scores, -torch.inf).log_softmax(dim=-1)


def alignment(weights: Float[Tensor, "rows T"], importance: Float[Tensor, "rows T"], mask: Mask) -> float:
    """Return the first-order drop of L_T per unit step, relative to the best possible: mean of Σ w z / Σ w; at most 1.

    Uniform weights get about .02 on facts in a window of 64 tokens.
    """
    inside = torch.where(mask, weights, 0)
    drop = (inside * standardised(importance, mask)).sum(dim=1) / inside.sum(dim=1)
    return float(drop.mean())
