"""Markdown tables from the file of finished cells, and from nothing else.

*Share* is how much of the oracle's gain over uniform weights an arm gets, at the same seed. The NLL at keep = .95 is
interpolated between the two epochs around it, of each fact alike, so differences of arms are paired over facts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from budwood.evals.curves import KEEP, CurvePoint, best_total, learn_at_keep, nll_at_keep, share_of_gain

from ..instructions.report import difference
from .arms import title

Line = Mapping[str, Any]
Runs = Mapping[str, Mapping[int, Line]]


def report(lines: Iterable[Line]) -> str:
    """Return the Markdown of every table in the file."""
    tables: dict[str, list[Line]] = {}
    for line in lines:
        tables.setdefault(str(sorted(line["common"].items())), []).append(line)
    return "\n\n".join(_table(cells) for cells in tables.values()) or "no finished cells"


def _table(lines: Sequence[Line]) -> str:
    common, first = lines[0]["common"], lines[0]["looks"][0]
    runs: dict[str, dict[int, Line]] = {}
    for line in lines:
        runs.setdefault(line["arm"], {})[line["seed"]] = line
    head = (
        f"## {common['to_learn']}: {len(first['learn'])} facts to learn, {len(first['keep'])} to keep\n\n"
        f"Base {common['base']} ({common['dtype']}, {common['device']}), {common['schedule']['epochs']} epochs, "
        f"learning rate {common['schedule']['learning_rate']:g}; "
        f"{sum(line['minutes'] for line in lines):.0f} minutes."
    )
    return "\n\n".join([head, _figures(runs), "### Against uniform, paired over facts", _differences(runs)])


def curve(line: Line) -> list[CurvePoint]:
    """Return the means of a cell's looks."""
    return [
        CurvePoint(look["epoch"], *(float(np.mean(look[name])) for name in ("learn", "keep", "nll")))
        for look in line["looks"]
    ]


def fact_nll_at_keep(line: Line, keep: float = KEEP) -> np.ndarray:
    """Return the NLL of each fact where the mean of `keep` first falls below; their mean is `curves.nll_at_keep`."""
    points = curve(line)
    values = [np.asarray(look["nll"]) for look in line["looks"]]
    if points[0].keep < keep:
        return np.full_like(values[0], np.nan)
    for i, (before, after) in enumerate(itertools.pairwise(points)):
        if after.keep < keep:
            share = (before.keep - keep) / (before.keep - after.keep)
            return values[i] + share * (values[i + 1] - values[i])
    return values[-1]


def _most(line: Line) -> float:
    return max(point.learn for point in curve(line))


def _most_by_object(line: Line) -> float:
    """Return the best mean over distinct objects: an object that many facts share counts once."""
    classes = np.asarray(line["objects"])
    means = [
        [np.asarray(look["learn"])[classes == one].mean() for one in set(line["objects"])] for look in line["looks"]
    ]
    return float(np.mean(means, axis=1).max())


def _total(line: Line) -> float:
    return best_total(curve(line)).total


def _nll(line: Line) -> float:
    return nll_at_keep(curve(line)) or float("nan")


def _figures(runs: Runs) -> str:
    heads = ["arm", "seeds", "learn at keep ≥ .95", "NLL at keep .95", "best Total (epoch)", "most learned"]
    heads += ["by object", "end: learn / NLL / keep", "share: NLL", "Total", "most", "on objects", "tokens", "CPU s"]
    rows = []
    for name, by_seed in runs.items():
        cells = list(by_seed.values())
        ends = [curve(line)[-1] for line in cells]
        bests = [best_total(curve(line)) for line in cells]
        at_keep = [learn_at_keep(curve(line)) for line in cells]
        rows.append(
            [
                title(name),
                " ".join(map(str, by_seed)),
                _each(point.learn if point else float("nan") for point in at_keep),
                _each((_nll(line) for line in cells), 2),
                " · ".join(f"{best.total:.3f} ({best.epoch:g})" for best in bests),
                _each(map(_most, cells)),
                _each(map(_most_by_object, cells)),
                " · ".join(f"{end.learn:.3f} / {end.nll:.2f} / {end.keep:.3f}" for end in ends),
                *(_shares(runs, name, value) for value in (_nll, _total, _most)),
                f"{cells[0]['weights']['object_mass']:.2f}",
                f"{cells[0]['weights']['tokens_used']:.2f}",
                f"{np.mean([line['training_cpu_s'] for line in cells]):.0f}",
            ]
        )
    return _markdown(heads, rows)


def _shares(runs: Runs, name: str, value: Callable[[Line], float]) -> str:
    found = []
    for seed, line in runs[name].items():
        floor, ceiling = runs.get("uniform", {}).get(seed), runs.get("oracle", {}).get(seed)
        share = share_of_gain(value(line), value(floor), value(ceiling)) if floor and ceiling else None
        found.append("–" if share is None else f"{share:.2f}")
    return " · ".join(found)


def _differences(runs: Runs) -> str:
    rows = []
    for name, by_seed in runs.items():
        seeds = sorted(by_seed.keys() & runs.get("uniform", {}).keys())
        if name == "uniform" or not seeds:
            continue
        row = [title(name), " ".join(map(str, seeds))]
        for value in (fact_nll_at_keep, _hits):
            one, other = (np.stack([value(runs[arm][seed]) for seed in seeds]) for arm in (name, "uniform"))
            gap = difference(one, other)
            row.append(f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]")
        rows.append(row)
    heads = ["arm − uniform", "seeds", "NLL at keep .95 [95 %]", "learned at best Total [95 %]"]
    return _markdown(heads, rows) if rows else "no pairs yet"


def _hits(line: Line) -> np.ndarray:
    best = best_total(curve(line)).epoch
    return next(np.asarray(look["learn"]) for look in line["looks"] if look["epoch"] == best)


def _each(values: Iterable[float], digits: int = 3) -> str:
    return " · ".join(f"{value:.{digits}f}" for value in values)


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
