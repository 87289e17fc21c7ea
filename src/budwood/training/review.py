"""Mix-review: each epoch also sees rows of what is to be kept, fewer from epoch to epoch.

He et al., 2021 (https://arxiv.org/abs/1910.07117): beside n new rows, epoch e = 0, 1, … sees

    n · ratio · decayᵉ

rows drawn at random from a pool. They are spread evenly over the steps of the epoch, as rows like any other: a step's
loss is the mean over its new and its reviewed rows. The number of steps stays that of the new rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from budwood.training.draws import drawn
from budwood.training.plan import Plan

if TYPE_CHECKING:
    from budwood.data.render import Encoded


@dataclass(frozen=True)
class Review:
    """What is reviewed, and how much of it.

    Attributes:
        rows: the pool, at least one row.
        ratio: reviewed rows for each new one in the first epoch.
        decay: the factor on that from epoch to epoch, from 0 to 1.
    """

    rows: Sequence[Encoded]
    ratio: float
    decay: float

    def chosen(self, step: int, plan: Plan) -> list[int]:
        """Return which rows of the pool the step after `step` steps reviews; an epoch draws anew."""
        epoch, place = divmod(step, plan.steps_per_epoch)
        seen = [min(steps * plan.rows_per_step, plan.rows) for steps in (place, place + 1)]
        start, stop = (round(rows * self.ratio * self.decay**epoch) for rows in seen)
        return drawn(len(self.rows), start, stop, f"review {plan.seed} {epoch}")
