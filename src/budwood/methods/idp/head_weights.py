"""Weights for the attention heads of a model: which of them tell the prompts of a bank apart.

A text's attention to the prompts differs from head to head: most heads look at a prompt by its place and length, some
by what the text is about. Let z_clhi be the attention of context c at head h of layer l to prompt i, standardised over
unlabelled contexts, and v_ci the log-likelihood a token of that context behind prompt i, both minus their mean over i:

    score_i = b_i + Σ_lh w_lh z_lhi        b_i = mean_c v_ci
    w = argmin Σ_c Σ_i (v_ci − b_i − Σ_lh w_lh z_clhi)² + λ |w|²

The likelihood labels the contexts offline; at run time one pass over the text, up to the last weighted layer, is all.
One weight serves all prompts, so that prompts may change places. λ has the smallest error of contexts left out, which
has a closed form: with H = Z (ZᵀZ + λ)⁻¹ Zᵀ and r the residuals, that of context c is (I − H_cc)⁻¹ r_c.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from budwood.errors import DataError

PENALTIES = tuple(10.0**power for power in range(6))  # λ; features have variance 1


class HeadWeights(BaseModel):
    """The fitted weights, and what attention is standardised with.

    Attributes:
        mean, deviation: of each head's attention to each prompt, (layers, heads, m).
        weight: w, (layers, heads).
        bias: b, (m,).
        penalty: λ.
        contexts: how many it was fitted on.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mean: list[list[list[float]]]
    deviation: list[list[list[float]]]
    weight: list[list[float]]
    bias: list[float]
    penalty: float
    contexts: int

    @property
    def prompts(self) -> int:
        """The number of prompts m."""
        return len(self.bias)

    def scores(self, attention: Float[Tensor, "b l h m"]) -> Float[Tensor, "b m"]:
        """Return the score of each prompt."""
        parts = (self.mean, self.deviation, self.weight, self.bias)
        mean, deviation, weight, bias = (torch.tensor(part, device=attention.device) for part in parts)
        return torch.einsum("blhm,lh->bm", (attention - mean) / deviation, weight) + bias


def fit_heads(attention: Float[Tensor, "c l h m"], likelihood: Float[Tensor, "c m"]) -> HeadWeights:
    """Fit the weights.

    Args:
        attention: of each context to each prompt.
        likelihood: of each context behind each prompt, nats a token; larger is better.

    Raises:
        DataError: fewer than two contexts.
    """
    if len(attention) < 2:
        raise DataError(f"{len(attention)} contexts to fit weights on", wanted="2 at least, 60 for good choices")
    attention, likelihood = attention.double(), likelihood.double()
    mean, deviation = attention.mean(dim=0), attention.std(dim=0)
    deviation = torch.where(deviation > 1e-6 * mean.abs(), deviation, torch.inf)  # what never moves says nothing
    standardised = ((attention - mean) / deviation).flatten(1, 2)
    features = (standardised - standardised.mean(dim=2, keepdim=True)).transpose(1, 2)
    targets = likelihood - likelihood.mean(dim=1, keepdim=True)
    bias = targets.mean(dim=0)
    penalty, weight = _solve(features, targets - bias)
    return HeadWeights(
        mean=mean.tolist(),
        deviation=deviation.clamp_max(torch.finfo(torch.float32).max).tolist(),  # JSON knows no infinity
        weight=weight.view(attention.shape[1:3]).tolist(),
        bias=bias.tolist(),
        penalty=penalty,
        contexts=len(attention),
    )


def _solve(features: Float[Tensor, "c m f"], targets: Float[Tensor, "c m"]) -> tuple[float, Float[Tensor, " f"]]:
    """Return the λ with the smallest error of contexts left out, and its w."""
    contexts, prompts = targets.shape
    left, values, right = torch.linalg.svd(features.flatten(0, 1), full_matrices=False)
    projected, tried = left.T @ targets.flatten(), []
    for penalty in PENALTIES:
        shrunk = values.square() / (values.square() + penalty)
        residual = targets - (left @ (shrunk * projected)).view(contexts, prompts)
        rows = left.view(contexts, prompts, -1)
        hats = torch.einsum("cik,k,cjk->cij", rows, shrunk, rows)
        apart = torch.linalg.solve(torch.eye(prompts, dtype=hats.dtype) - hats, residual)
        tried.append((float(apart.square().sum()), penalty, right.T @ (shrunk / values.clamp_min(1e-12) * projected)))
    _, penalty, weight = min(tried, key=lambda one: one[0])
    return penalty, weight
