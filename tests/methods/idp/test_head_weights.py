"""Weights of heads: the closed form against fits without each context, what is found, and what cannot be."""

from __future__ import annotations

import pytest
import torch

from budwood.errors import DataError
from budwood.methods.idp.head_weights import PENALTIES, _solve, fit_heads


def telling(contexts: int, *, heads: int = 4, noise: float = 0.1, seed: int = 0):
    """Attention (c, 2, heads, 3) of which head 1 of layer 0 alone follows the likelihood (c, 3)."""
    generator = torch.Generator().manual_seed(seed)
    likelihood = torch.randn(contexts, 3, generator=generator)
    attention = torch.rand(contexts, 2, heads, 3, generator=generator)
    attention[:, 0, 1] = 0.5 + 0.01 * (likelihood + noise * torch.randn(contexts, 3, generator=generator))
    attention[:, 1, 2] = 0.25  # never moves
    return attention, likelihood


def test_the_error_of_what_is_left_out_is_that_of_fits_without_it():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(7, 3, 5, generator=generator, dtype=torch.double)
    targets = torch.randn(7, 3, generator=generator, dtype=torch.double)
    errors = {}
    for penalty in PENALTIES:
        errors[penalty] = 0.0
        for out in range(7):
            kept = [c for c in range(7) if c != out]
            z, y = features[kept].flatten(0, 1), targets[kept].flatten()
            w = torch.linalg.solve(z.T @ z + penalty * torch.eye(5, dtype=torch.double), z.T @ y)
            errors[penalty] += float((features[out] @ w - targets[out]).square().sum())
    chosen, weight = _solve(features, targets)
    assert chosen == min(errors, key=lambda penalty: errors[penalty])
    z, y = features.flatten(0, 1), targets.flatten()
    exact = torch.linalg.solve(z.T @ z + chosen * torch.eye(5, dtype=torch.double), z.T @ y)
    torch.testing.assert_close(weight, exact)


def test_the_head_that_tells_is_found():
    fitted = fit_heads(*telling(60))
    attention, likelihood = telling(200, seed=5)
    scores = fitted.scores(attention)
    assert (scores.argmax(dim=1) == likelihood.argmax(dim=1)).float().mean() > 0.9
    weight = torch.tensor(fitted.weight).abs()
    assert weight.argmax() == 1 and weight[1, 2] == 0
    raw = attention.mean(dim=(1, 2))
    assert (raw.argmax(dim=1) == likelihood.argmax(dim=1)).float().mean() < 0.6


def test_a_prompt_that_is_always_better_is_preferred_where_attention_says_nothing():
    attention, likelihood = torch.full((10, 1, 2, 3), 0.3), torch.zeros(10, 3)
    likelihood[:, 2] = 1.0
    fitted = fit_heads(attention, likelihood)
    assert fitted.scores(attention).argmax(dim=1).eq(2).all() and torch.isfinite(fitted.scores(attention)).all()


def test_prompts_may_change_places():
    attention, likelihood = telling(40)
    order = [2, 0, 1]
    first = fit_heads(attention, likelihood).scores(attention)
    second = fit_heads(attention[..., order], likelihood[:, order]).scores(attention[..., order])
    torch.testing.assert_close(first[:, order], second, rtol=1e-4, atol=1e-5)


def test_it_survives_json():
    attention, likelihood = telling(40)
    fitted = fit_heads(attention, likelihood)
    again = type(fitted).model_validate_json(fitted.model_dump_json())
    assert torch.equal(again.scores(attention), fitted.scores(attention))


def test_one_context_is_not_enough():
    with pytest.raises(DataError, match="1 contexts"):
        fit_heads(*telling(1))
