import pytest

from budwood.errors import UsageError
from budwood.evals._running import context_length, make_batches
from tests import tiny


def test_longest_rows_come_first_and_similar_ones_together():
    assert make_batches([3, 9, 1, 8, 2], 2, budget=1) == [[1, 3], [0, 4], [2]]


def test_auto_fills_the_budget_with_padded_rows():
    batches = make_batches([50, 10, 10, 10, 9, 1, 1], "auto", budget=30)
    assert batches == [[0], [1, 2, 3], [4, 5, 6]]


def test_a_row_over_the_budget_is_a_batch_of_its_own():
    assert make_batches([100, 100], "auto", budget=30) == [[0], [1]]


@pytest.mark.parametrize("batch_size", [0, -3])
def test_a_batch_needs_a_row(batch_size):
    with pytest.raises(UsageError):
        make_batches([1], batch_size, budget=1)


def test_context_length_is_read_from_the_config():
    assert context_length(tiny.llama()) == context_length(tiny.gpt2()) == 256
