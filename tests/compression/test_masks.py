"""Masks: counts, ties, and that each is the best of all masks where that can be tried."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from budwood.compression.masks import keep_highest, magnitude, wanda
from budwood.compression.settings import Pattern
from tests.compression.matrices import case, gram_of, loss


@pytest.mark.parametrize("sparsity", [0.25, 0.5, 0.7])
def test_each_row_loses_its_share(sparsity):
    weight, _ = case(6, 40)
    made = magnitude(weight, sparsity=sparsity)
    assert ((made == 0).sum(dim=1) == round(sparsity * 40)).all()
    for row, old in zip(made, weight):
        assert row[row != 0].abs().min() >= old[row == 0].abs().max()


def test_of_equal_weights_the_same_go_every_time():
    scores = torch.ones(2, 6)
    assert keep_highest(scores, 0.5).tolist() == [[False] * 3 + [True] * 3] * 2


def test_a_pattern_holds_in_every_four():
    weight, x = case(6, 40)
    for made in (
        magnitude(weight, sparsity=0.5, pattern=Pattern(2, 4)),
        wanda(weight, gram_of(x), sparsity=0.5, pattern=Pattern(2, 4)),
    ):
        assert ((made.unflatten(1, (-1, 4)) != 0).sum(dim=-1) == 2).all()


def test_wanda_is_the_best_mask_of_each_row_where_inputs_are_uncorrelated():
    weight, x = case(5, 6)
    x = torch.linalg.qr(x).Q * torch.linspace(0.1, 3, 6)
    made = wanda(weight, gram_of(x), sparsity=0.5)
    for row, kept in zip(weight, made):
        tried = []
        for places in combinations(range(6), 3):
            masked = torch.zeros_like(row)
            masked[list(places)] = row[list(places)]
            tried.append(loss(row[None], masked[None], x))
        assert loss(row[None], kept[None], x) == pytest.approx(min(tried))


def test_wanda_with_inputs_of_one_size_is_magnitude():
    weight, _ = case(5, 12)
    assert torch.equal(wanda(weight, torch.eye(12), sparsity=0.5), magnitude(weight, sparsity=0.5))
