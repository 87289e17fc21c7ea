import pytest

from budwood.training.draws import drawn


@pytest.mark.parametrize("count", [1, 3, 7])
def test_every_row_is_seen_once_before_any_is_seen_twice(count):
    series = drawn(count, 0, 5 * count, seed=3)
    turns = [series[start : start + count] for start in range(0, 5 * count, count)]
    assert all(sorted(turn) == list(range(count)) for turn in turns)
    assert count < 7 or len({tuple(turn) for turn in turns}) > 1


def test_a_part_of_the_series_is_the_same_wherever_it_begins():
    series = drawn(5, 0, 23, seed="a")
    assert [drawn(5, start, start + 4, seed="a") for start in range(19)] == [series[i : i + 4] for i in range(19)]
    assert drawn(5, 7, 7, seed="a") == [] and drawn(5, 0, 23, seed="b") != series
