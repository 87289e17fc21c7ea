"""The difference between two models on the same rows: a paired bootstrap interval, and Student's paired t-test.

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


@dataclass(frozen=True)
class TTest:
    """Student's t for the mean of paired differences being 0.

    Attributes:
        t: the mean over its standard error; positive where the first is larger.
        degrees: of freedom, the number of pairs less one.
        p: two-sided.
    """

    t: float
    degrees: int
    p: float


def paired_t_test(first: Sequence[float], second: Sequence[float]) -> TTest:
    """Test whether two models differ in the mean, by pairs such as runs of one seed.

    Args:
        first: one figure a pair, at least two that differ otherwise than all alike.
        second: the other figure of each pair.
    """
    gain = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    assert len(gain) > 1, "at least two pairs"
    error = gain.std(ddof=1) / np.sqrt(len(gain))
    if error == 0:  # all pairs differ alike: without spread there is no doubt, and without difference no effect
        return TTest(0.0 if gain[0] == 0 else float(np.copysign(np.inf, gain[0])), len(gain) - 1, float(gain[0] == 0))
    t = float(gain.mean() / error)
    return TTest(t, len(gain) - 1, _two_sided(abs(t), len(gain) - 1))


def _two_sided(t: float, degrees: int) -> float:
    """Return P(|T| > t). With T = √ν tan θ the density is that of θ, cos^(ν − 1) θ, on a finite interval."""
    start = np.arctan(t / np.sqrt(degrees))
    tail, whole = (_integral(degrees - 1, low) for low in (start, 0.0))
    return float(tail / whole)


def _integral(power: int, low: float, points: int = 20001) -> float:
    """Return the integral of cos^power from `low` to π/2, by Simpson's rule."""
    theta = np.linspace(low, np.pi / 2, points)
    weights = np.ones(points)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    values = np.cos(theta).clip(0) ** power
    return float((weights * values).sum() * (theta[1] - theta[0]) / 3)
