import math

import pytest

from budwood.errors import ConfigError
from budwood.training.plan import Plan
from budwood.training.settings import TrainingSettings


def plan(rows=80, **changes) -> Plan:
    return Plan(TrainingSettings(**changes), rows, seed=0)


def test_steps_follow_from_rows_and_settings():
    assert Plan(TrainingSettings(epochs=2, batch_size=4, accumulate=2), 81, seed=0).total_steps == 22
    assert Plan(TrainingSettings(epochs=0.5, batch_size=8), 80, seed=0).total_steps == 5
    assert Plan(TrainingSettings(epochs=9, max_steps=7), 80, seed=0).total_steps == 7
    assert Plan(TrainingSettings(epochs=1, batch_size=8), 80, seed=0, processes=2).total_steps == 5


@pytest.mark.parametrize("rows", [1, 40, 88, 2000])
def test_a_run_is_evaluated_and_saved_about_ten_times_and_at_the_end(rows):
    run = plan(rows, epochs=1)
    for due in (run.evaluates_at, run.saves_at):
        steps = [step for step in range(1, run.total_steps + 1) if due(step)]
        assert steps[-1] == run.total_steps
        assert min(run.total_steps, 5) <= len(steps) <= 10


def test_intervals_can_be_set():
    run = plan(rows=80, epochs=1, evaluate_every=4, save_every=3)
    assert [s for s in range(1, 11) if run.evaluates_at(s)] == [4, 8, 10]
    assert [s for s in range(1, 11) if run.saves_at(s)] == [3, 6, 9, 10]


def test_the_learning_rate_rises_then_falls_to_the_floor():
    run = plan(max_steps=100, warmup_steps=4, schedule="linear", final_fraction=0.2)
    factors = [run.learning_rate_factor(step) for step in range(101)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[52] == pytest.approx(0.6) and factors[100] == pytest.approx(0.2)
    assert factors[4:] == sorted(factors[4:], reverse=True)


def test_the_other_schedules():
    cosine = plan(max_steps=100, warmup_steps=0, schedule="cosine")
    assert cosine.learning_rate_factor(25) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert cosine.learning_rate_factor(100) == pytest.approx(0)
    constant = plan(max_steps=100, warmup_steps=0, schedule="constant")
    assert {constant.learning_rate_factor(s) for s in range(101)} == {1.0}


def test_the_first_step_of_a_run_learns():
    assert plan(max_steps=1).learning_rate_factor(0) == 1.0
    assert plan(max_steps=2).learning_rate_factor(0) > 0


def test_the_warmup_may_be_a_part_and_is_at_most_half():
    assert plan(max_steps=100, warmup_steps=0.1).warmup_steps == 10
    assert plan(max_steps=100, warmup_steps=80).warmup_steps == 50
    cut = [plan(max_steps=100, warmup_steps=wanted).warmup_is_cut for wanted in (0.1, 50, 50.5, 80)]
    assert cut == [False, False, True, True]


def test_another_plan_is_refused_on_resume_but_not_for_what_changes_nothing():
    began = plan(epochs=2).identity()
    plan(epochs=2, workers=2, save_every=1, gradient_checkpointing=True).require_same(began)
    with pytest.raises(ConfigError, match=r"batch_size was 8, is 4"):
        plan(epochs=2, batch_size=4).require_same(began)
    with pytest.raises(ConfigError, match=r"rows was 80, is 81"):
        plan(rows=81, epochs=2).require_same(began)


def test_a_run_from_before_a_setting_came_is_resumed_with_its_default():
    before = plan().identity()
    del before["normalise"]
    plan().require_same(before)
    with pytest.raises(ConfigError, match="normalise was token, is sequence"):
        plan(normalise="sequence").require_same(before)
