import numpy as np
import pytest

from budwood.evals.paired import paired_difference


def test_mean_is_weighted_and_inside_its_interval():
    found = paired_difference([1.0, 3.0, 2.0], [0.0, 1.0, 2.0], weights=[1.0, 2.0, 1.0])
    assert found.mean == pytest.approx((1 * 1 + 2 * 2 + 0) / 4)
    assert found.low <= found.mean <= found.high


def test_equal_scores_give_an_interval_of_no_width():
    found = paired_difference([1.0, 0.0], [1.0, 0.0])
    assert (found.mean, found.low, found.high, found.is_clear) == (0.0, 0.0, 0.0, False)


def test_same_seed_gives_the_same_interval():
    scores = np.random.default_rng(0).normal(size=(2, 40)).tolist()
    assert paired_difference(*scores, seed=3) == paired_difference(*scores, seed=3)
    assert paired_difference(*scores, seed=3) != paired_difference(*scores, seed=4)


def test_pairing_removes_what_rows_have_in_common():
    hardness = np.random.default_rng(0).normal(scale=10, size=50)
    found = paired_difference((hardness + 0.1).tolist(), hardness.tolist())
    assert found.low == pytest.approx(0.1) and found.high == pytest.approx(0.1) and found.is_clear


def test_interval_agrees_with_the_normal_one():
    gain = np.random.default_rng(1).normal(0.3, 1.0, size=400)
    found = paired_difference(gain.tolist(), [0.0] * 400)
    half = 1.96 * gain.std() / 20
    assert found.low == pytest.approx(gain.mean() - half, abs=0.02)
    assert found.high == pytest.approx(gain.mean() + half, abs=0.02)


def test_weighted_interval_resamples_the_ratio():
    # One long row holds the whole gain: samples that miss it have no gain at all.
    found = paired_difference([1.0, 0.0, 0.0], [0.0, 0.0, 0.0], weights=[100.0, 1.0, 1.0])
    assert found.low == 0.0 and found.high == 1.0
