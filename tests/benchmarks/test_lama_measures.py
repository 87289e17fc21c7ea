"""The measures of the table of facts: on plain means they are those of `budwood.evals.curves`, draw by draw too."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.lama_ckl import measures

from budwood.evals import curves as reference

FACTS, KEEP, SEEDS, LOOKS = 5, 20, 2, 7


def cells(seed):
    rng = np.random.default_rng(seed)
    falling = np.linspace(1.0, 0.8, LOOKS)
    return [
        {
            "looks": [
                {
                    "learn": (rng.random(FACTS) < 0.1 * epoch).astype(float).tolist(),
                    "nll": (rng.random(FACTS) + 6 - epoch / 2).tolist(),
                    "keep": (rng.random(KEEP) < falling[epoch]).astype(float).tolist() if epoch else [1.0] * KEEP,
                    "margin": [None, *rng.random(FACTS - 1).tolist()],
                }
                for epoch in range(LOOKS)
            ]
        }
        for _ in range(SEEDS)
    ]


def plain(line, shares):
    """The curve of a cell with facts and facts to keep weighted by `shares`, as the package's measures read it."""
    facts, keep = shares
    return [
        reference.CurvePoint(epoch, *(float(np.dot(look[name], one)) for name, one in
                                      (("learn", facts), ("keep", keep), ("nll", facts))))
        for epoch, look in enumerate(line["looks"])
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_each_draw_is_measured_as_a_curve_of_its_means(seed):
    lines, drawn = cells(seed), measures.draw(FACTS, KEEP, SEEDS, seed=seed)
    found = measures.curves(lines, drawn)
    values = {name: measure(found) for name, measure in measures.MEASURES.items()}
    for sample in (0, 1, 2, 77):
        for s, line in enumerate(lines):
            curve = plain(line, (drawn.facts[sample], drawn.keep[sample]))
            total, enough = reference.total_knowledge(curve), reference.learn_at_keep(curve)
            wanted = {
                "NLL at keep .95": reference.nll_at_keep(curve),
                "learn at keep ≥ .95": enough.learn,
                "Top Acc": total.learn,
                "epoch": total.epoch,
                "NF Acc": total.keep,
                "Total Knowledge": total.total,
            }
            for name, value in wanted.items():
                assert values[name][sample, s] == pytest.approx(value), (name, sample)


def test_a_draw_is_of_whole_facts_and_the_first_is_even():
    drawn = measures.draw(FACTS, KEEP, SEEDS)
    assert drawn.facts.shape == (measures.RESAMPLES + 1, FACTS) and drawn.seeds.shape[1] == SEEDS
    np.testing.assert_allclose(drawn.facts.sum(axis=1), 1)
    np.testing.assert_allclose(drawn.facts[1:] * FACTS, np.round(drawn.facts[1:] * FACTS), atol=1e-12)
    np.testing.assert_allclose(drawn.facts[0], 1 / FACTS)


def test_a_margin_is_the_mean_of_the_facts_that_have_one():
    lines, drawn = cells(0), measures.draw(FACTS, KEEP, SEEDS)
    margin = measures.curves(lines, drawn).margin
    assert margin[0, 1, 3] == pytest.approx(np.mean(lines[1]["looks"][3]["margin"][1:]))


def test_what_never_falls_is_read_at_the_end_and_what_begins_below_is_not_a_number():
    one = np.array([[[6.0, 5.0, 4.0]]])
    stays, low = np.array([[[1.0, 0.96, 0.95]]]), np.array([[[0.9, 1.0, 1.0]]])
    for keep, wanted in ((stays, 4.0), (low, np.nan)):
        found = measures.nll_at_keep(measures.Curves(one / 10, one, keep, one))
        np.testing.assert_equal(found, [[wanted]])


def test_epochs_until_as_much_is_learned():
    learn = np.array([[[0.0, 0.1, 0.3, 0.2]]])
    one = measures.Curves(learn, learn, learn, learn)
    for target, wanted in ((0.1, 1.0), (0.25, 2.0), (0.4, np.nan)):
        np.testing.assert_equal(measures.epochs_until(one, np.array([[target]])), [[wanted]])


def test_shares_of_a_gain():
    arm, uniform, oracle = (np.full(5, value) for value in (1.5, 1.0, 3.0))
    found = measures.share_of_gain(arm, uniform, oracle)
    assert (found.value, found.low, found.high) == (0.25, 0.25, 0.25)
    assert np.isnan(measures.share_of_gain(arm, uniform, uniform).value)
