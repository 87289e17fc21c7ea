"""How often a bank chose each prompt, and whether that was a choice at all."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

log = logging.getLogger(__name__)

CONSTANT_SHARE, ENOUGH_ROWS = 0.95, 20  # from so many rows on, a larger share for one prompt is no choice


@dataclass(frozen=True)
class Histogram:
    """How often each prompt was chosen.

    Attributes:
        counts: rows, by the prompt's name.
        lengths: vectors, by the prompt's name.
    """

    counts: dict[str, int]
    lengths: dict[str, int]

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(self.counts.values())

    @property
    def effective_tokens(self) -> float:
        """The mean length of the chosen prompts; 0 before the first choice."""
        return sum(n * self.lengths[name] for name, n in self.counts.items()) / max(1, self.rows)

    @property
    def constant(self) -> str | None:
        """The prompt that nearly all rows got, where that is so: then one prompt would have done."""
        name, count = max(self.counts.items(), key=lambda one: one[1])
        few = self.rows < ENOUGH_ROWS or len(self.counts) < 2
        return None if few or count <= CONSTANT_SHARE * self.rows else name


class Tally:
    """Counts choices, and warns once if nearly all fall on one prompt.

    Args:
        lengths: vectors of each prompt, by name, in the bank's order.
    """

    def __init__(self, lengths: dict[str, int]) -> None:
        self._lengths = dict(lengths)
        self._counts = dict.fromkeys(lengths, 0)
        self._warned = False

    def add_prompt(self, name: str, length: int) -> None:
        """Count for one prompt more."""
        self._lengths[name], self._counts[name] = length, 0

    def count(self, selection: Int[Tensor, " b"]) -> None:
        """Count the prompts of the rows of a batch."""
        for name, rows in zip(self._counts, selection.bincount(minlength=len(self._counts)).tolist(), strict=True):
            self._counts[name] += rows
        now = self.histogram()
        if now.constant is not None and not self._warned:
            self._warned = True
            log.warning(
                "%d of %d rows got the prompt %r: the selector makes no choice, that prompt alone would do as well",
                now.counts[now.constant],
                now.rows,
                now.constant,
            )

    def histogram(self) -> Histogram:
        """Return the counts so far."""
        return Histogram(dict(self._counts), dict(self._lengths))
