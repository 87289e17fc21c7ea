"""Weights from scores, by hand; and scores that are kept."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from budwood.errors import NonFiniteError
from budwood.methods.taalm import row_cache
from budwood.methods.taalm.row_cache import RowCache
from budwood.methods.taalm.settings import WeightSettings
from budwood.methods.taalm.weights import cached_scores, mixed, token_weights
from tests.methods.taalm import cases

PLAIN = WeightSettings(cut_off=0, floor=0)


@pytest.fixture
def passage():
    return cases.passages(["words"])[0]


def test_weights_by_hand(passage):
    scores = torch.tensor([9.0, 0.0, 1.0, -1.0, 1.0])  # the first token is not scored
    raw = torch.tensor([-1.0, 0.0, -2.0, 0.0]).exp()
    assert_close(token_weights(passage, scores, PLAIN)[1:], 4 * raw / raw.sum())
    sharper = (torch.tensor([-1.0, 0.0, -2.0, 0.0]) / 0.5).exp()
    assert_close(
        token_weights(passage, scores, PLAIN.model_copy(update={"temperature": 0.5}))[1:], 4 * sharper / sharper.sum()
    )
    cut = torch.tensor([0.0, 1.0, 0.0, 1.0])
    found = token_weights(passage, scores, WeightSettings(cut_off=0.4, floor=0.2))
    assert_close(found, torch.cat([torch.zeros(1), 0.8 * 4 * cut / 2 + 0.2]))


@pytest.mark.parametrize("shift", [0.0, -1000.0, 1e6])
def test_a_shift_of_the_scores_changes_nothing_and_the_mean_is_1(passage, shift):
    scores = torch.tensor([0.0, 0.5, 1.5, 0.0, 2.0])
    found = token_weights(passage, scores + shift, WeightSettings())
    assert_close(found, token_weights(passage, scores, WeightSettings()), rtol=1e-3, atol=1e-3)
    assert_close(found.sum(), torch.tensor(4.0))
    assert found[0] == 0


def test_whole_floor_and_equal_scores_are_uniform(passage):
    uniform = torch.tensor([0.0, 1, 1, 1, 1])
    assert_close(token_weights(passage, torch.arange(5.0), WeightSettings(floor=1)), uniform)
    assert_close(token_weights(passage, torch.zeros(5), PLAIN), uniform)
    assert_close(mixed(passage, torch.zeros(5), PLAIN), uniform)


def test_a_text_of_one_token_has_no_weights():
    (short,) = cases.passages(["x"])
    assert token_weights(short, torch.ones(1), WeightSettings()).tolist() == [0.0]


def test_a_score_that_is_no_number_is_an_error(passage):
    with pytest.raises(NonFiniteError, match="texts, row 1"):
        token_weights(passage, torch.tensor([0, 1, torch.nan, 0, 0]), WeightSettings())


class Counting:
    """A scorer that counts the texts it is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def scores(self, passages):
        self.asked += len(passages)
        return [torch.arange(float(len(passage.spans))) for passage in passages]


def test_scores_are_computed_once_for_the_same_texts_and_scorer(tmp_path):
    scorer, texts = Counting(), cases.passages(["one", "other", "one"])
    first = cached_scores(scorer, texts, RowCache(tmp_path, "a"))
    again = cached_scores(scorer, texts, RowCache(tmp_path, "a"))
    assert scorer.asked == 3 and [len(one) for one in again] == [3, 5, 3]
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    cached_scores(scorer, texts, RowCache(tmp_path, "b"))
    assert scorer.asked == 6
    for file in tmp_path.iterdir():
        file.write_bytes(b"damaged")
    assert len(cached_scores(scorer, texts, RowCache(tmp_path, "a"))) == 3 and scorer.asked == 9


def test_an_interrupted_computation_goes_on_behind_the_last_whole_group(tmp_path, monkeypatch):
    monkeypatch.setattr(row_cache, "GROUP", 2)
    computed = []

    def compute(chosen):
        if len(computed) == 4:
            raise KeyboardInterrupt
        computed.extend(chosen)
        return [torch.tensor([float(i)]) for i in chosen]

    cache = RowCache(tmp_path / "rows", "a")
    with pytest.raises(KeyboardInterrupt):
        cache.rows(list("abcde"), compute)
    computed.append("again")
    assert [float(row) for row in cache.rows(list("abcde"), compute)] == [0, 1, 2, 3, 4]
    assert computed == [0, 1, 2, 3, "again", 4]
