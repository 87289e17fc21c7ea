"""Rules for weights: values by hand, and RHO-1's selection against sorting (property 14)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from budwood.errors import ConfigError
from budwood.methods.taalm import heuristics
from tests.methods.taalm import cases

TEXT = "Ida moor, of McBay"


@pytest.fixture
def passage():
    return cases.passages([TEXT])[0]


def chosen(passage, weights):
    """The characters whose tokens have weight 1."""
    assert set(weights.tolist()) <= {0.0, 1.0}
    return "".join(passage.text[slice(*passage.spans[t])] for t in weights.nonzero()[:, 0].tolist())


def test_uniform_is_1_where_a_loss_may_fall(passage):
    assert chosen(passage, heuristics.uniform(passage)) == TEXT[1:]  # nothing predicts the first token


def test_oracle_marks_the_targets(passage):
    assert chosen(passage, heuristics.oracle(passage, [(4, 8), (13, 18)])) == "moorMcBay"
    assert heuristics.oracle(passage, []).sum() == 0


def test_capitalised_marks_whole_words(passage):
    assert chosen(passage, heuristics.capitalised(passage)) == "daMcBay"


def test_rules_on_the_loss():
    p = torch.tensor([1.0, 0.75, 0.5, 1e-6])
    nll = -p.log()
    assert_close(heuristics.one_minus_p(nll), 1 - p)
    assert_close(heuristics.focal(nll), (1 - p).square())
    assert_close(heuristics.focal(nll, gamma=0.0), torch.ones(4))
    assert heuristics.entropy(torch.tensor([-1e-7, 2.0])).tolist() == [0.0, 2.0]
    scored = torch.tensor([True, True, True, False])
    assert heuristics.token_dropping(nll, scored).tolist() == [0.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("keep", [0.01, 0.4, 0.6, 1.0])
@pytest.mark.parametrize("count", [1, 5, 37])
def test_rho1_keeps_exactly_the_highest_excess_losses(keep, count):
    generator = torch.Generator().manual_seed(count)
    nll, reference = (torch.rand(40, generator=generator) for _ in range(2))
    scored = torch.zeros(40, dtype=torch.bool)
    scored[torch.randperm(40, generator=generator)[:count]] = True
    kept = heuristics.rho1(nll, reference, scored, keep) > 0
    assert kept.sum() == math.ceil(round(keep * count, 9)) and not kept[~scored].any()
    excess = nll - reference
    left = scored & ~kept
    assert not left.any() or excess[kept].min() >= excess[left].max()


def test_a_reference_that_is_the_model_leaves_ties_and_no_crash():
    nll, scored = torch.rand(10), torch.ones(10, dtype=torch.bool)
    assert heuristics.rho1(nll, nll, scored).tolist() == [1.0] * 6 + [0.0] * 4


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.1, math.nan])
def test_a_share_that_is_none_is_an_error(keep):
    with pytest.raises(ConfigError, match="share of"):
        heuristics.top_share(torch.ones(3), torch.ones(3, dtype=torch.bool), keep)
