"""The figures of the curves of an arm, and what a bootstrap over facts and seeds makes of them.

A sample draws facts to learn, facts to keep, and seeds, each with replacement; all arms get the same draw, so their
differences and shares are paired. Every measure is read off the curves of the drawn means, so the choice of an epoch
is part of what is drawn. On the plain means each measure is that of `budwood.evals.curves`.

    R samples · S seeds · E looks · n facts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from budwood.evals.curves import KEEP

Line: TypeAlias = Mapping[str, Any]
Values: TypeAlias = Float[np.ndarray, "R S"]
RESAMPLES = 2_000


@dataclass(frozen=True, eq=False)
class Curves:
    """Means over facts at each look.

    Attributes:
        learn, nll, keep, margin: of each sample, seed and look.
    """

    learn: Float[np.ndarray, "R S E"]
    nll: Float[np.ndarray, "R S E"]
    keep: Float[np.ndarray, "R S E"]
    margin: Float[np.ndarray, "R S E"]


@dataclass(frozen=True, eq=False)
class Draw:
    """How often each fact, each fact to keep and each seed was drawn, in shares that sum to 1."""

    facts: Float[np.ndarray, "R n"]
    keep: Float[np.ndarray, "R m"]
    seeds: Float[np.ndarray, "R S"]


@dataclass(frozen=True)
class Interval:
    """A figure and the 2.5 % and 97.5 % quantiles of its samples."""

    value: float
    low: float
    high: float


def draw(facts: int, keep: int, seeds: int, *, seed: int = 0) -> Draw:
    """Return `RESAMPLES` draws behind a first one, in which everything counts alike."""
    rng = np.random.default_rng(seed)
    return Draw(*(_shares(rng, count) for count in (facts, keep, seeds)))


def _shares(rng: np.random.Generator, count: int) -> Float[np.ndarray, "R n"]:
    even = np.full(count, 1 / count)
    return np.concatenate([even[None], rng.multinomial(count, even, RESAMPLES) / count])


def curves(lines: Sequence[Line], drawn: Draw) -> Curves:
    """Return the curves of an arm's cells, one a seed, in each sample."""
    weights = {"learn": drawn.facts, "nll": drawn.facts, "keep": drawn.keep}
    found = {name: _stack(lines, name) @ shares.T for name, shares in weights.items()}
    return Curves(
        **{name: np.moveaxis(value, -1, 0) for name, value in found.items()},
        margin=_mean_of_some(_stack(lines, "margin"), drawn.facts),
    )


def _stack(lines: Sequence[Line], name: str) -> Float[np.ndarray, "S E n"]:
    """Return the values of all looks; NaN for what a fact, or a cell of an older version, does not have."""
    return np.array(
        [[look.get(name) or [None] * len(look["nll"]) for look in line["looks"]] for line in lines], dtype=float
    )


def _mean_of_some(values: Float[np.ndarray, "S E n"], shares: Float[np.ndarray, "R n"]) -> Float[np.ndarray, "R S E"]:
    """Return means over the facts that have a value: a fact alone in its relation has no margin."""
    there = ~np.isnan(values)
    total, count = (np.moveaxis(one @ shares.T, -1, 0) for one in (np.where(there, values, 0), there.astype(float)))
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def nll_at_keep(one: Curves) -> Values:
    """Nats a token of the objects where the share of known facts that are kept first falls below `KEEP`."""
    return _at_keep(one, one.nll)


def margin_at_keep(one: Curves) -> Values:
    """The margin at that place."""
    return _at_keep(one, one.margin)


def _at_keep(one: Curves, values: Float[np.ndarray, "R S E"]) -> Values:
    below = one.keep < KEEP
    first = np.where(below.any(axis=-1), below.argmax(axis=-1), -1)[..., None]
    after, before = (np.take_along_axis(part, first, -1)[..., 0] for part in (values, one.keep))
    ahead = np.maximum(first - 1, 0)
    start, kept = (np.take_along_axis(part, ahead, -1)[..., 0] for part in (values, one.keep))
    fall = kept - before
    share = np.divide(kept - KEEP, fall, out=np.zeros_like(fall), where=fall > 0)
    found = np.where(first[..., 0] < 0, values[..., -1], start + share * (after - start))
    return np.where(first[..., 0] == 0, np.nan, found)


def learn_at_keep(one: Curves) -> Values:
    """The most that was learned at any look with at least `KEEP` kept."""
    best = np.where(one.keep >= KEEP, one.learn, -np.inf).max(axis=-1)
    return np.where(np.isfinite(best), best, np.nan)


def top_accuracy(one: Curves) -> Values:
    """TAALM's Top Acc: the most that was ever learned."""
    return one.learn.max(axis=-1)


def top_epoch(one: Curves) -> Values:
    """The first epoch of it."""
    return one.learn.argmax(axis=-1).astype(float)


def kept_at_top(one: Curves) -> Values:
    """TAALM's NF Acc: what was kept at that epoch."""
    return np.take_along_axis(one.keep, one.learn.argmax(axis=-1)[..., None], -1)[..., 0]


def total_knowledge(one: Curves) -> Values:
    """Top Acc + NF Acc."""
    return top_accuracy(one) + kept_at_top(one)


def epochs_until(one: Curves, target: Values) -> Values:
    """Epochs until as much is learned as `target` says, NaN where it never is."""
    reached = one.learn >= target[..., None] - 1e-9
    return np.where(reached.any(axis=-1), reached.argmax(axis=-1).astype(float), np.nan)


MEASURES: dict[str, Callable[[Curves], Values]] = {
    "NLL at keep .95": nll_at_keep,
    "learn at keep ≥ .95": learn_at_keep,
    "Top Acc": top_accuracy,
    "epoch": top_epoch,
    "NF Acc": kept_at_top,
    "Total Knowledge": total_knowledge,
    "margin at keep .95": margin_at_keep,
}


def over_seeds(values: Values, drawn: Draw) -> Float[np.ndarray, " R"]:
    """Return the mean over the drawn seeds."""
    return np.asarray((values * drawn.seeds).sum(axis=1))


def interval(samples: Float[np.ndarray, " R"]) -> Interval:
    """Return the first sample, which is the plain one, and the interval of the others that are numbers."""
    rest = samples[1:][np.isfinite(samples[1:])]
    low, high = np.quantile(rest, [0.025, 0.975]) if len(rest) else (np.nan, np.nan)
    return Interval(float(samples[0]), float(low), float(high))


def share_of_gain(
    arm: Float[np.ndarray, " R"], uniform: Float[np.ndarray, " R"], oracle: Float[np.ndarray, " R"]
) -> Interval:
    """Return (arm − uniform) / (oracle − uniform) of each sample in which the two differ."""
    gain = oracle - uniform
    return interval(np.divide(arm - uniform, gain, out=np.full_like(gain, np.nan), where=np.abs(gain) > 1e-9))
