"""Markdown tables from the file of finished cells, and from nothing else.

*Share* is (arm − uniform) / (oracle − uniform): how much of the oracle's gain over uniform weights an arm gets, on the
seeds that all three have. Where the oracle loses against uniform weights, as in NF Acc, a share above 0 is a loss
too. Intervals are 95 % of a bootstrap that draws facts to learn, facts to keep, and seeds (`measures.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from . import measures
from .arms import ARMS, title
from .measures import MEASURES, Curves, Draw, Interval, Line
from .studies import study_rows
from .weighting import WORD_CLASSES

Runs = Mapping[str, Mapping[int, Line]]
SHARED = ("NLL at keep .95", "learn at keep ≥ .95", "Top Acc", "epoch", "NF Acc", "Total Knowledge")


def report(lines: Iterable[Line]) -> str:
    """Return the Markdown of every table in the file."""
    tables: dict[str, list[Line]] = {}
    for line in lines:
        tables.setdefault(json.dumps(line["common"], sort_keys=True), []).append(line)
    return "\n\n".join(_table(cells) for cells in tables.values()) or "no finished cells"


def _table(lines: Sequence[Line]) -> str:
    common, runs = lines[0]["common"], _runs(lines)
    schedule = common["schedule"]
    parts = [
        f"## {common['to_learn']}",
        f"Base {common['base']} ({common['dtype']}, {common['device']}), {schedule['epochs']} epochs, learning rate "
        f"{schedule['learning_rate']:g}; {sum(line['minutes'] for line in lines):.0f} minutes.",
    ]
    if runs:
        first = next(iter(next(iter(runs.values())).values()))["looks"][0]
        parts += [f"{len(first['learn'])} facts to learn, {len(first['keep'])} to keep.", _figures(runs)]
        parts += ["### Share of the oracle's gain [95 %]", _shares(runs)]
        parts += ["### Against uniform, paired [95 %]", _differences(runs)]
        if classes := _classes(runs):
            parts += ["### Mean weight by class of word", classes]
    parts += [_markdown(heads, rows) for heads, rows in study_rows(lines)]
    return "\n\n".join(part for part in parts if part)


def _runs(lines: Sequence[Line]) -> Runs:
    runs: dict[str, dict[int, Line]] = {}
    for line in lines:
        if "arm" in line:
            runs.setdefault(line["arm"], {})[line["seed"]] = line
    return runs


def _drawn(lines: Sequence[Line]) -> Draw:
    first = lines[0]["looks"][0]
    return measures.draw(len(first["learn"]), len(first["keep"]), len(lines))


def _partner(runs: Runs, rule: str) -> str:
    """Return the name of the run under a rule that arms are compared with; "" without one."""
    return next((name for name in runs if name in ARMS and ARMS[name].weights == rule), "")


def _figures(runs: Runs) -> str:
    rows = []
    for name, by_seed in runs.items():
        lines = [by_seed[seed] for seed in sorted(by_seed)]
        drawn = _drawn(lines)
        found = measures.curves(lines, drawn)
        cells = [_by_seed(measure(found)[0], key) for key, measure in MEASURES.items()]
        made = lines[0]["weights"]
        rows.append(
            [
                title(name),
                " ".join(map(str, sorted(by_seed))),
                *cells,
                _until(runs, name),
                _ends(found),
                f"{made['object_mass']:.2f}",
                f"{made['tokens_used']:.2f}",
                f"{np.mean([line['training_cpu_s'] for line in lines]):.0f}",
            ]
        )
    heads = ["arm", "seeds", *MEASURES, "epochs to uniform's best", "end: learn / NLL / keep", "on objects", "tokens"]
    return _markdown([*heads, "CPU s"], rows)


def _by_seed(values: np.ndarray, heading: str) -> str:
    digits = 0 if heading == "epoch" else 2 if "NLL" in heading or "margin" in heading else 3
    return " · ".join("–" if np.isnan(value) else f"{value:.{digits}f}" for value in values)


def _ends(found: Curves) -> str:
    ends = zip(found.learn[0, :, -1], found.nll[0, :, -1], found.keep[0, :, -1])
    return " · ".join(f"{learn:.3f} / {nll:.2f} / {keep:.3f}" for learn, nll, keep in ends)


def _until(runs: Runs, name: str) -> str:
    """Return for each seed the epochs until an arm has learned as much as uniform weights at their best."""
    seeds, (found, uniform), _ = _together(runs, name, _partner(runs, "uniform"))
    if not seeds:
        return "–"
    return _by_seed(measures.epochs_until(found, measures.top_accuracy(uniform))[0], "epoch")


def _together(runs: Runs, *names: str) -> tuple[list[int], list[Curves], Draw]:
    """Return the seeds that all of these arms have, their curves under one draw, and the draw."""
    seeds = sorted(set.intersection(*(set(runs.get(name, {})) for name in names)))
    if not seeds:
        return [], [], measures.draw(1, 1, 1)
    lines = [[runs[name][seed] for seed in seeds] for name in names]
    drawn = _drawn(lines[0])
    return seeds, [measures.curves(one, drawn) for one in lines], drawn


def _shares(runs: Runs) -> str:
    rows = []
    for name in runs:
        partners = [_partner(runs, rule) for rule in ("uniform", "oracle")]
        if name in partners:
            continue
        seeds, found, drawn = _together(runs, name, *partners)
        if seeds:
            rows.append([title(name), " ".join(map(str, seeds)), *(_share(key, found, drawn) for key in SHARED)])
    return _markdown(["arm", "seeds", *SHARED], rows) if rows else "no arm beside uniform and oracle yet"


def _share(heading: str, found: Sequence[Curves], drawn: Draw) -> str:
    return _with_interval(
        measures.share_of_gain(*(measures.over_seeds(MEASURES[heading](one), drawn) for one in found))
    )


def _differences(runs: Runs) -> str:
    rows = []
    for name in runs:
        partner = _partner(runs, "uniform")
        seeds, found, drawn = _together(runs, name, partner)
        if name == partner or not seeds:
            continue
        row = [title(name), " ".join(map(str, seeds))]
        for measure in MEASURES.values():
            one, other = (measures.over_seeds(measure(curves), drawn) for curves in found)
            row.append(_with_interval(measures.interval(one - other), sign="+"))
        rows.append(row)
    return _markdown(["arm − uniform", "seeds", *MEASURES], rows) if rows else "no pairs yet"


def _with_interval(one: Interval, sign: str = "") -> str:
    if np.isnan(one.value):
        return "–"
    return f"{one.value:{sign}.2f} [{one.low:{sign}.2f}, {one.high:{sign}.2f}]"


def _classes(runs: Runs) -> str:
    rows = []
    for name, by_seed in runs.items():
        means = next(iter(by_seed.values()))["weights"].get("by_class", {})
        if means:
            rows.append([title(name), *(f"{means[one]:.2f}" if one in means else "–" for one in WORD_CLASSES)])
    return _markdown(["arm", *WORD_CLASSES], rows) if rows else ""


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
