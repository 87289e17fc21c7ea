"""Rows drawn again and again without an end: each is seen once before any is seen twice."""

from __future__ import annotations

import random


def drawn(count: int, start: int, stop: int, seed: int | str) -> list[int]:
    """Return entries `start` to `stop` of an endless series of rows, by their index.

    The series is one permutation of all rows after another. It depends on nothing but `count` and `seed`, so that what
    a step draws is the same in a run that was interrupted.

    Args:
        count: how many rows there are, at least 1.
    """
    orders = {turn: _order(count, turn, seed) for turn in range(start // count, -(-stop // count))}
    return [orders[place // count][place % count] for place in range(start, stop)]


def _order(count: int, turn: int, seed: int | str) -> list[int]:
    return random.Random(f"{seed} {turn}").sample(range(count), count)
