"""Objectives and alignment against plain loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from budwood.methods.taalm.objectives import (
    ENTROPY_BONUS,
    OBJECTIVES,
    alignment,
    first_order,
    ranked_list,
    regression,
    standardised,
)

MASK = torch.tensor([[0, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 1, 1, 1, 0]], dtype=torch.bool)
IMPORTANCE = torch.tensor([[9, 2, -4, 1, 0], [9, -1, -2, 7, 7], [0, 0.5, 0, 3, -8]], dtype=torch.float64)


@pytest.fixture
def scores():
    return torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def rows():
    """z and the scored places of each text."""
    for values, mask in zip(IMPORTANCE.tolist(), MASK.tolist()):
        places = [t for t in range(5) if mask[t]]
        largest = max(abs(values[t]) for t in places)
        yield [values[t] / largest for t in places], places


def softmax(values):
    total = sum(math.exp(v) for v in values)
    return [math.exp(v) / total for v in values]


def test_standardised():
    found = standardised(IMPORTANCE, MASK)
    for row, (z, places) in zip(found, rows()):
        assert_close(row[places], torch.tensor(z, dtype=torch.float64))
    assert (found[~MASK] == 0).all()
    assert (standardised(torch.zeros(1, 3), MASK[:1, :3]) == 0).all()


def test_regression(scores):
    naive = [
        sum((float(member[i][t]) - 3 * v) ** 2 for v, t in zip(z, places)) / len(places)
        for member in scores
        for i, (z, places) in enumerate(rows())
    ]
    assert math.isclose(float(regression(scores, standardised(IMPORTANCE, MASK), MASK)), sum(naive) / 6)


def test_ranked_list_passes_over_a_text_without_helpful_tokens(scores):
    naive = []
    for member in scores:
        for i, (z, places) in enumerate(rows()):
            helpful = [max(v, 0) for v in z]
            if sum(helpful):
                p = softmax([float(member[i][t]) for t in places])
                naive.append(-sum(h / sum(helpful) * math.log(q) for h, q in zip(helpful, p)))
    assert len(naive) == 4  # the second text has none
    assert math.isclose(float(ranked_list(scores, standardised(IMPORTANCE, MASK), MASK)), sum(naive) / 4)


def test_first_order(scores):
    naive = []
    for member in scores:
        for i, (z, places) in enumerate(rows()):
            p = softmax([float(member[i][t]) for t in places])
            spread = -sum(q * math.log(q) for q in p)
            naive.append(-sum(q * v for q, v in zip(p, z)) - ENTROPY_BONUS * spread)
    assert math.isclose(float(first_order(scores, standardised(IMPORTANCE, MASK), MASK)), sum(naive) / 6)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_what_is_not_scored_decides_nothing(name, scores):
    z = standardised(IMPORTANCE, MASK)
    scores.requires_grad_()
    loss = OBJECTIVES[name](scores, z, MASK)
    loss.backward()
    assert (scores.grad[:, ~MASK] == 0).all() and torch.isfinite(scores.grad).all()
    other = torch.where(MASK, scores.detach(), 50.0)
    assert_close(OBJECTIVES[name](other, z, MASK), loss.detach())


def test_alignment():
    weights = torch.tensor([[9, 1, 0, 0, 0], [9, 0, 1, 9, 9], [9, 1, 1, 2, 9]], dtype=torch.float64)
    assert math.isclose(alignment(weights, IMPORTANCE, MASK), (0.5 - 1.0 + (0.5 + 0 + 2 * 3) / 4 / 3) / 3)
