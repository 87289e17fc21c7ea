import random

import pytest

from budwood.training.batches import BLANK, Rows, StepSampler, evaluation_batches
from budwood.training.plan import Plan
from budwood.training.settings import TrainingSettings
from tests.training.rows import make_rows

LENGTHS = [random.Random(1).randint(3, 50) for _ in range(45)]


def samplers(batch_size, accumulate, processes=1, rows=45, epoch=0):
    plan = Plan(TrainingSettings(batch_size=batch_size, accumulate=accumulate), rows, seed=3, processes=processes)
    made = [StepSampler(LENGTHS[:rows], plan, process) for process in range(processes)]
    for sampler in made:
        sampler.set_epoch(epoch)
    return made


def steps(made, accumulate):
    """The rows of each optimiser step, over all processes."""
    per_process = [list(sampler) for sampler in made]
    assert all(len(batches) == len(sampler) for batches, sampler in zip(per_process, made))
    assert len({len(batches) for batches in per_process}) == 1, "every process gets as many batches"
    return [
        sorted(
            row for batches in per_process for batch in batches[i : i + accumulate] for row in batch if row != BLANK
        )
        for i in range(0, len(per_process[0]), accumulate)
    ]


SPLITS = [(8, 1, 1), (2, 4, 1), (1, 8, 1), (4, 1, 2), (1, 4, 2), (2, 1, 4)]


@pytest.mark.parametrize("rows", [45, 41, 40, 3])
@pytest.mark.parametrize("batch_size, accumulate, processes", SPLITS)
def test_the_split_changes_no_step_and_no_row_is_lost_or_repeated(batch_size, accumulate, processes, rows):
    wanted = steps(samplers(8, 1, rows=rows), 1)
    assert sorted(row for step in wanted for row in step) == list(range(rows))
    assert steps(samplers(batch_size, accumulate, processes, rows=rows), accumulate) == wanted


@pytest.mark.parametrize("batch_size, accumulate, processes", SPLITS)
def test_no_batch_is_larger_than_asked_for(batch_size, accumulate, processes):
    for sampler in samplers(batch_size, accumulate, processes):
        assert all(1 <= len(batch) <= batch_size for batch in sampler)


def test_epochs_and_seeds_differ_and_repeat():
    orders = [list(samplers(8, 1, epoch=epoch)[0]) for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]


def test_rows_of_a_step_are_grouped_by_length():
    (sampler,) = samplers(2, 4)
    for start in range(0, 20, 4):
        lengths = [LENGTHS[row] for batch in list(sampler)[start : start + 4] for row in batch]
        assert lengths == sorted(lengths, reverse=True)


def test_a_blank_row_weighs_nothing():
    rows = Rows(make_rows(5))
    assert len(rows) == 5
    assert set(rows[BLANK].loss_weights) == {0.0}
    assert len(rows[BLANK].input_ids) == min(len(rows[i].input_ids) for i in range(5))


def test_evaluation_rows_are_shared_out_once():
    rows = make_rows(11)
    shares = [evaluation_batches(rows, 2, process, 3) for process in range(3)]
    assert sorted(id(row) for share in shares for batch in share for row in batch) == sorted(map(id, rows))
