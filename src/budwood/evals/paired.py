"""The difference between two models on the same rows, with a paired bootstrap interval.

Rows are resampled, each with both of its scores, so what makes a row hard or easy for either model cancels out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """Adapted minus base: the mean, and the bounds of its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def paired_difference(
    adapted: Sequence[float],
    base: Sequence[float],
    weights: Sequence[float] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """Return the weighted mean of `adapted - base` over rows and its percentile bootstrap interval.

    Args:
        adapted: one score a row.
        base: one score a row, in the same order.
        weights: one weight a row, such as its count of tokens; None weighs rows alike. A resampled row brings its
            weight along, so a mean over tokens is resampled as the ratio it is.
        resamples: how many bootstrap samples are drawn.
        seed: of the resampling; the same seed gives the same interval.
    """
    assert len(adapted) == len(base) > 0, "paired scores belong to the same rows"
    weight = np.ones(len(base)) if weights is None else np.asarray(weights, dtype=np.float64)
    gain = (np.asarray(adapted, dtype=np.float64) - np.asarray(base, dtype=np.float64)) * weight
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    for i in range(resamples):
        drawn = rng.integers(0, len(gain), len(gain))
        means[i] = gain[drawn].sum() / weight[drawn].sum()
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Difference(float(gain.sum() / weight.sum()), float(low), float(high))
