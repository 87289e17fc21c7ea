import numpy as np
import pytest

from budwood.evals.paired import _two_sided, paired_difference, paired_t_test


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


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [(12.706205, 1, 0.05), (2.776445, 4, 0.05), (4.604095, 4, 0.01), (2.228139, 10, 0.05), (1.983972, 100, 0.05)],
)
def test_the_two_sided_p_is_that_of_the_tables(t, degrees, p):
    assert _two_sided(t, degrees) == pytest.approx(p, rel=1e-5)


def test_the_t_test_is_the_mean_over_its_standard_error():
    first, second = [1.0, 2.0, 4.0, 3.5], [0.5, 2.5, 2.0, 3.0]
    gain = [a - b for a, b in zip(first, second)]
    mean = sum(gain) / 4
    error = (sum((one - mean) ** 2 for one in gain) / 3 / 4) ** 0.5
    found = paired_t_test(first, second)
    assert found.t == pytest.approx(mean / error) and found.degrees == 3 and 0 < found.p < 1
    assert paired_t_test(second, first).p == pytest.approx(found.p)
    assert paired_t_test([1.0, 1.0], [1.0, 1.0]).p == 1 and paired_t_test([2.0, 2.0], [1.0, 1.0]).p == 0
