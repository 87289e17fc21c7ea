"""What a choice gives, from losses made by hand and from a bank."""

from __future__ import annotations

import numpy as np
import pytest

from budwood.data.problems import Origin
from budwood.evals.choice import Choices, choice_figures, measure_choices
from budwood.evals.likelihood import likelihoods
from budwood.evals.perplexity import windows_of
from budwood.methods.idp.bank import PromptBank
from tests.evals.test_perplexity import TEXT
from tests.methods.idp.banks import make_bank


def choices(selection: list[int]) -> Choices:
    alone = np.array([[1.0, 3.0], [4.0, 2.0], [2.0, 2.5], [3.0, 1.0]])
    return Choices(("a", "b"), np.array([1, 1, 1, 3]), alone, np.array(selection), np.array([5.0, 5.0, 5.0, 5.0]))


def test_every_way_to_choose_by_hand():
    nll = choices([0, 1, 1, 1]).to_dict()["nll"]
    assert nll["base"] == 5
    assert nll["always a"] == pytest.approx((1 + 4 + 2 + 9) / 6) and nll["always b"] == pytest.approx(10.5 / 6)
    assert nll["best constant"] == nll["always b"]
    assert nll["random"] == pytest.approx((nll["always a"] + nll["always b"]) / 2)
    assert nll["oracle"] == pytest.approx((1 + 2 + 2 + 3) / 6)
    assert nll["chosen"] == pytest.approx((1 + 2 + 2.5 + 3) / 6)


def test_the_share_of_the_head_room_is_1_for_an_oracle_and_the_histogram_counts():
    best = choices([0, 1, 0, 1]).to_dict()
    assert best["share_of_head_room"] == pytest.approx(1) and best["histogram"] == {"a": 2, "b": 2}
    constant = choices([1, 1, 1, 1]).to_dict()
    assert constant["nll"]["chosen"] == constant["nll"]["best constant"]
    assert constant["dynamic_gain"] is False  # no better than one prompt, whatever it gains on the base


def test_equal_prompts_leave_no_head_room():
    same = Choices(("a", "b"), np.ones(3, dtype=int), np.ones((3, 2)), np.zeros(3, dtype=int), np.ones(3))
    assert same.to_dict()["share_of_head_room"] is None


def test_a_bank_is_measured_as_its_prompts_alone_are(tmp_path):
    bank = make_bank(tmp_path)
    parts = {prompt.name: PromptBank(bank.model, [prompt]) for prompt in bank.prompts}
    texts = windows_of(TEXT, length=24, context=8, origin=Origin("t"))
    found = measure_choices(bank, parts, bank.model, texts)
    behind = [one.nll / one.tokens for one in likelihoods(bank, texts)]
    np.testing.assert_allclose(found.chosen, behind, atol=1e-4)
    np.testing.assert_allclose(found.base, [one.nll / one.tokens for one in likelihoods(bank.model, texts)], atol=1e-6)
    assert choice_figures(bank, parts, bank.model, []) is None
