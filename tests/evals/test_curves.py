import random

import pytest

from budwood.errors import DataError
from budwood.evals.curves import CurvePoint, best_total, learn_at_keep, nll_at_keep, share_of_gain, total_knowledge

CURVE = [
    CurvePoint(0, 0.00, 1.00, 6.0),
    CurvePoint(2, 0.10, 0.97, 5.0),
    CurvePoint(4, 0.30, 0.93, 4.0),
    CurvePoint(6, 0.30, 0.99, 3.0),
    CurvePoint(8, 0.20, 0.60, 3.5),
]


def test_total_knowledge_is_read_at_the_first_peak():
    found = total_knowledge(CURVE)
    assert (found.epoch, found.learn, found.keep) == (4, 0.30, 0.93)
    assert found.total == found.to_dict()["total"] == pytest.approx(1.23)


def test_best_total_may_stand_elsewhere():
    assert best_total(CURVE).epoch == 6
    assert best_total(CURVE).total == pytest.approx(1.29)


def test_learning_at_a_keep_takes_the_lower_nll_of_equals():
    assert learn_at_keep(CURVE).epoch == 6
    assert learn_at_keep(CURVE, 0.9).epoch == 6
    assert learn_at_keep(CURVE[:3]).epoch == 2
    assert learn_at_keep(CURVE, 1.01) is None


def test_nll_is_interpolated_where_keep_first_falls_below():
    assert nll_at_keep(CURVE, 0.95) == pytest.approx(4.5)
    assert nll_at_keep(CURVE, 0.97) == pytest.approx(5.0)
    assert nll_at_keep(CURVE, 1.0) == pytest.approx(6.0)
    assert nll_at_keep(CURVE, 0.5) == 3.5
    assert nll_at_keep(CURVE[1:], 0.99) is None


def test_interpolation_lies_between_the_two_epochs():
    rng = random.Random(0)
    for _ in range(200):
        curve = [CurvePoint(epoch, 0, rng.random(), rng.random()) for epoch in range(5)]
        found = nll_at_keep(curve, 0.5)
        if found is None:
            assert curve[0].keep < 0.5
            continue
        below = next((i for i, point in enumerate(curve) if point.keep < 0.5), None)
        pair = curve[below - 1 : below + 1] if below else curve[-1:]
        assert min(point.nll for point in pair) <= found <= max(point.nll for point in pair)


def test_share_of_gain():
    assert share_of_gain(5.0, floor=6.0, ceiling=4.0) == pytest.approx(0.5)
    assert share_of_gain(6.5, floor=6.0, ceiling=4.0) == pytest.approx(-0.25)
    assert share_of_gain(1.0, floor=1.0, ceiling=1.0) is None


@pytest.mark.parametrize("read", [total_knowledge, best_total, learn_at_keep, nll_at_keep])
@pytest.mark.parametrize("curve", [[], CURVE[::-1], [CURVE[0], CURVE[0]]], ids=["empty", "backwards", "twice"])
def test_curves_that_cannot_be_read(read, curve):
    with pytest.raises(DataError, match="a curve at the epochs"):
        read(curve)
