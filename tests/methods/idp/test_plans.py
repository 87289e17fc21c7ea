"""The trainings of a bank as parts of one progress, and how long the search for a learning rate may be."""

from __future__ import annotations

import pytest

from budwood.data.problems import Origin
from budwood.data.render import Encoded
from budwood.methods.idp.domains import Division, Domain
from budwood.methods.idp.plans import SHARE, parts_of, planned, stages, trial_steps
from tests.methods.idp import texts

ROW = Encoded([1, 2], [1, 2], [1.0, 1.0], Origin("a.txt"), 0)


def division(*windows: int) -> Division:
    return Division(tuple(Domain(f"part{i}", [ROW] * n, []) for i, n in enumerate(windows)))


@pytest.fixture
def order(tmp_path):
    """Batches of four, for the epochs that the settings say."""
    from tests import tiny

    base = str(tiny.save(tiny.llama(), tmp_path / "base"))
    return texts.order(base, [tmp_path], training={"max_steps": None, "epochs": 4.0})


def settings(**values):
    from budwood.methods.idp.settings import BankSettings

    return BankSettings(**values)


@pytest.mark.parametrize(
    ("windows", "steps"),
    [((20, 20), 0), ((40, 40), 6), ((100, 100), 16), ((400, 400), 20)],
)
def test_the_search_takes_a_quarter_of_the_training_at_most(order, windows, steps):
    one = division(*windows)
    assert trial_steps(order, settings(), one) == steps
    plans = planned(order, settings(), one)
    own = sum(plan.total_steps for plan in plans[-3:])  # a common one and two of their own
    assert len(plans) == 3 + (3 if steps else 0) and own == sum(windows)
    assert sum(plan.total_steps for plan in plans) - own <= SHARE * own


@pytest.mark.parametrize(
    ("common", "steps"), [(0.5, [60, 20, 40]), (0.0, [0, 40, 80]), (0.25, [30, 30, 60]), (0.999, [120, 1, 1])]
)
def test_the_stages_take_the_steps_of_prompts_alone(order, common, steps):
    assert stages(order, settings(common=common), division(40, 80)) == steps
    assert [plan.total_steps for plan in planned(order, settings(common=common, search=()), division(40, 80))] == [
        count for count in steps if count
    ]


def test_one_prompt_has_nothing_in_common(order):
    assert stages(order, settings(), division(40)) == [0, 40]


def test_what_is_asked_for_is_searched(order):
    one = division(20, 20)
    assert trial_steps(order, settings(search_steps=7), one) == 7
    assert trial_steps(order, settings(search_steps=7, search=(1.0,)), one) == 0


def test_each_training_is_told_as_a_part_of_all(order):
    parts = parts_of(order, settings(), division(40, 80))
    assert [(part.name, part.before, part.total) for part in parts.values()] == [
        ("trial 1 of 3, learning rate 0.015", 0, 150),
        ("trial 2 of 3, learning rate 0.05", 10, 150),
        ("trial 3 of 3, learning rate 0.15", 20, 150),
        ("what all prompts have in common", 30, 150),
        ("prompt 1 of 2, part0", 90, 150),
        ("prompt 2 of 2, part1", 110, 150),
    ]
    assert ("prompts", "part1") in parts and ("search", "0.015") in parts
