"""Which epoch is the best: the one with the lowest cost."""

from __future__ import annotations

import itertools

from budwood.evals.curves import CurvePoint, learn_at_keep
from budwood.methods.taalm.examination import cost


def test_the_lowest_cost_is_the_point_that_learned_most_and_kept_enough():
    values = itertools.product((0.0, 0.4, 0.5), (0.90, 0.95, 1.0), (1.0, 2.0, 6.0))
    curve = [CurvePoint(epoch, learn, keep, nll) for epoch, (learn, keep, nll) in enumerate(values)]
    for few in itertools.combinations(curve, 3):
        best = min(few, key=lambda point: cost(point.learn, point.nll, point.keep, 0.95))
        wanted = learn_at_keep(few, 0.95)
        assert best == wanted if wanted else best.keep == max(point.keep for point in few)
