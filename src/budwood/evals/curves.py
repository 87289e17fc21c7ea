"""What was learned against what was kept, over the epochs of a run: the figures of a learn/forget curve.

Total Knowledge is TAALM's (Seo et al., 2024, https://arxiv.org/abs/2407.16920): the accuracy on what was to be
learned at its first peak, plus the accuracy on what was not to be forgotten at the same epoch. The peak is picked on
the very curve that is reported, so it flatters; learning at a fixed keep, and the likelihood there, do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from budwood.errors import DataError

KEEP = 0.95  # the share of known facts that a run should not fall below


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One look at a run.

    Attributes:
        epoch: when; 0 is before training.
        learn: accuracy on the new facts, between 0 and 1.
        keep: accuracy on the facts that the base knows, between 0 and 1; 1 at epoch 0 by construction.
        nll: nats a target token on the new facts.
    """

    epoch: float
    learn: float
    keep: float
    nll: float


@dataclass(frozen=True, slots=True)
class TotalKnowledge:
    """Accuracy at the first peak of learning: the epoch, both accuracies, and their sum (2 at most)."""

    epoch: float
    learn: float
    keep: float

    @property
    def total(self) -> float:
        return self.learn + self.keep

    def to_dict(self) -> dict[str, float]:
        return {**asdict(self), "total": self.total}


def total_knowledge(curve: Sequence[CurvePoint]) -> TotalKnowledge:
    """Return Total Knowledge at the first peak: the first epoch at which `learn` is as high as it ever gets."""
    peak = max(_checked(curve), key=lambda point: point.learn)  # max returns the first of equals
    return TotalKnowledge(peak.epoch, peak.learn, peak.keep)


def best_total(curve: Sequence[CurvePoint]) -> TotalKnowledge:
    """Return the point where `learn + keep` is highest, the first of equals."""
    best = max(_checked(curve), key=lambda point: point.learn + point.keep)
    return TotalKnowledge(best.epoch, best.learn, best.keep)


def learn_at_keep(curve: Sequence[CurvePoint], keep: float = KEEP) -> CurvePoint | None:
    """Return the point with the most learned among those that keep enough: the checkpoint to publish.

    Of equals in accuracy the one with the lower NLL comes first, then the earlier one. None where no point keeps
    enough.
    """
    enough = [point for point in _checked(curve) if point.keep >= keep]
    return min(enough, key=lambda point: (-point.learn, point.nll), default=None)


def nll_at_keep(curve: Sequence[CurvePoint], keep: float = KEEP) -> float | None:
    """Return the NLL on the new facts where `keep` first falls below, in nats, interpolated between the two epochs.

    Where it never does, that of the last epoch; None where even the first point keeps less.
    """
    points = _checked(curve)
    if points[0].keep < keep:
        return None
    for before, after in itertools.pairwise(points):
        if after.keep < keep:
            share = (before.keep - keep) / (before.keep - after.keep)
            return before.nll + share * (after.nll - before.nll)
    return points[-1].nll


def share_of_gain(value: float, floor: float, ceiling: float) -> float | None:
    """Return how much of the way from `floor` (uniform weights) to `ceiling` (oracle) a value makes; None if equal."""
    return None if ceiling == floor else (value - floor) / (ceiling - floor)


def _checked(curve: Sequence[CurvePoint]) -> Sequence[CurvePoint]:
    """Return the curve if there is something to read off it.

    Raises:
        DataError: it has no point, or its epochs do not grow.
    """
    epochs = [point.epoch for point in curve]
    if not epochs or epochs != sorted(set(epochs)):
        raise DataError(f"a curve at the epochs {epochs}", wanted="at least one, each later than the one before")
    return curve
