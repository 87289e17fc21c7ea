"""Markdown tables from the file of finished cells, and from nothing else.

Differences between two arms are paired: the same rows, the same seeds (so the same order of training). The interval
is the 2.5 % and 97.5 % quantile of a bootstrap that draws rows and seeds, both with replacement. With three seeds the
part of the seeds is rough; the spread over seeds stands in the main table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arms import ARMS, LEARNING_RATES, VARIANTS, find_arm
from .results import hits

RESAMPLES = 10_000
TAIL = 10  # steps whose mean is the final training loss
PAIRS = (
    ("gift_r32", "lora_r16"),
    ("gift_r32", "lora_r1"),
    ("gift_r32", "shared_lora"),
    ("gift_blocks_r64", "lora_r16"),
    ("shared_lora", "lora_r16"),
    ("gift_residual_r43", "lora_r16"),
    ("gift_residual_r43", "lora_r1"),
    ("gift_residual_r43", "shared_lora_r34"),
    ("shared_lora_r34", "lora_r16"),
    *((variant.name, "gift_r32") for variant in VARIANTS),
)

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """A mean difference and its 95 % interval."""

    mean: float
    low: float
    high: float


def difference(a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> Difference:
    """Return the mean of a - b and its interval.

    Args:
        a, b: scores of shape (seeds, rows), paired in both.
        seed: of the resampling.
    """
    gaps = a - b
    rng = np.random.default_rng(seed)
    seeds, rows = gaps.shape
    of_seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES) / seeds
    of_rows = rng.multinomial(rows, np.full(rows, 1 / rows), RESAMPLES) / rows
    low, high = np.quantile(((of_seeds @ gaps) * of_rows).sum(axis=1), [0.025, 0.975])
    return Difference(float(gaps.mean()), float(low), float(high))


def report(lines: Iterable[Line]) -> str:
    """Return the Markdown of every table in the file."""
    tables: dict[str, list[Line]] = {}
    for line in lines:
        tables.setdefault(line["table"], []).append(line)
    return "\n\n".join(_table(name, cells) for name, cells in tables.items()) or "no finished cells"


def _table(name: str, lines: Sequence[Line]) -> str:
    runs = _by_arm([line for line in lines if line["stage"] == "final" and not line["diverged"]])
    parts = [f"## Instruction tasks, {lines[0]['common']['subset']} subset (table {name})", _conditions(lines)]
    if runs:
        parts += ["### Final runs", _final(runs), "### Differences, paired", _differences(runs)]
        parts += ["### Exact match by task, % (mean over seeds)", _by_task(runs)]
    parts += ["### Search of the learning rate: nats a token on the selection rows", _search(lines)]
    return "\n\n".join(part for part in parts if part)


def _conditions(lines: Sequence[Line]) -> str:
    common = lines[0]["common"]
    schedule = common["schedule"]
    commits = sorted({_commit(line) for line in lines})
    machines = sorted({", ".join(line["machine"]["devices"]) or line["machine"]["cpu"] for line in lines})
    return (
        f"Base {common['base']} ({common['dtype']}, {common['device']}); {len(common['tasks'])} tasks; "
        f"{schedule['steps']['search']} steps in the search, {schedule['steps']['final']} in final runs, "
        f"{schedule['tasks_per_step']} x {schedule['rows_per_task']} rows a step. "
        f"{len(lines)} cells, {sum(line['minutes'] for line in lines):.0f} minutes, "
        f"{sum(line['cpu_minutes'] for line in lines):.0f} of CPU time; commit {', '.join(commits)}; "
        f"{'; '.join(machines)}. Exact match is teacher-forced and includes the end token."
    )


def _commit(line: Line) -> str:
    state = line["machine"]["git"]
    return "unknown" if state is None else state["commit"][:7] + ("+changes" if state["changed"] else "")


def _by_arm(lines: Sequence[Line]) -> dict[str, dict[int, Line]]:
    """Runs by arm, in the order of the arms, and by seed."""
    known = [arm.name for arm in ARMS]
    names = sorted(
        {line["arm"] for line in lines}, key=lambda name: known.index(name) if name in known else len(known)
    )
    return {name: {line["seed"]: line for line in lines if line["arm"] == name} for name in names}


def _final(runs: Mapping[str, Mapping[int, Line]]) -> str:
    heads = [
        "arm",
        "parameters",
        "LoRA r16 / it",
        "lr",
        "seeds",
        "exact match %",
        "without end token %",
        "nats a token",
    ]
    heads += ["transfer exact %", "transfer nats", f"train loss, last {TAIL}", "slope per 10 steps", "minutes a run"]
    largest = next((line["parameters"] for line in runs.get("lora_r16", {}).values()), None)
    rows = []
    for name, by_seed in runs.items():
        cells = list(by_seed.values())
        count = cells[0]["parameters"]
        validation = [cell["validation"] for cell in cells]
        rows.append(
            [
                _title(name),
                f"{count:,}",
                f"{largest / count:.1f}" if largest and count else "–",
                " ".join(f"{rate:g}" for rate in sorted({cell["learning_rate"] for cell in cells})) if count else "–",
                str(len(cells)),
                _spread([100 * one["exact"] for one in validation], 1),
                _spread([100 * one["answered"] for one in validation], 1),
                _spread([one["nll_per_token"] for one in validation], 3),
                _spread([100 * cell["dev"]["exact"] for cell in cells], 1),
                _spread([cell["dev"]["nll_per_token"] for cell in cells], 3),
                _spread([float(np.mean(cell["losses"][-TAIL:])) for cell in cells if cell["losses"]], 3),
                _spread([_slope(cell["losses"]) for cell in cells if len(cell["losses"]) > 1], 3),
                f"{np.mean([cell['minutes'] for cell in cells]):.1f}",
            ]
        )
    return _markdown(heads, rows)


def _slope(losses: Sequence[float]) -> float:
    """The least-squares slope of the last losses, nats per 10 steps."""
    last = losses[-TAIL:]
    return 10 * float(np.polyfit(np.arange(len(last)), last, 1)[0])


def _differences(runs: Mapping[str, Mapping[int, Line]]) -> str:
    rows = []
    for a, b in PAIRS:
        seeds = sorted(runs.get(a, {}).keys() & runs.get(b, {}).keys())
        if not seeds:
            continue
        row = [f"{_title(a)} − {_title(b)}", " ".join(map(str, seeds))]
        for part, what, factor, digits in (
            ("validation", "hits", 100, 1),
            ("validation", "nll", 1, 3),
            ("dev", "hits", 100, 1),
        ):
            one, other = (np.stack([_scores(runs[arm][seed][part], what) for seed in seeds]) for arm in (a, b))
            gap = difference(factor * one, factor * other)
            row.append(f"{gap.mean:+.{digits}f} [{gap.low:+.{digits}f}, {gap.high:+.{digits}f}]")
        rows.append(row)
    heads = ["pair", "seeds", "exact match, points [95 %]", "nats a row [95 %]", "transfer, points [95 %]"]
    return _markdown(heads, rows) if rows else ""


def _scores(packed: Mapping[str, Any], what: str) -> np.ndarray:
    return hits(packed) if what == "hits" else np.asarray(packed["nll"])


def _by_task(runs: Mapping[str, Mapping[int, Line]]) -> str:
    tasks = next(iter(next(iter(runs.values())).values()))["common"]["tasks"]
    columns = []
    for by_seed in runs.values():
        mean = np.mean([hits(line["validation"]) for line in by_seed.values()], axis=0)
        columns.append(100 * mean.reshape(len(tasks), -1).mean(axis=1))
    return _markdown(
        ["task", *runs], [[task, *(f"{column[i]:.0f}" for column in columns)] for i, task in enumerate(tasks)]
    )


def _search(lines: Sequence[Line]) -> str:
    trials = _trials(lines)
    rows = []
    for name, by_rate in trials.items():
        known = {rate: loss for rate, loss in by_rate.items() if loss is not None}
        best = min(known, key=lambda rate: known[rate]) if known else None
        shown = [_trial(by_rate, rate, best) for rate in LEARNING_RATES]
        rows.append([_title(name), *shown, "yes" if best in (LEARNING_RATES[0], LEARNING_RATES[-1]) else ""])
    heads = ["arm", *(f"{rate:g}" for rate in LEARNING_RATES), "best at the edge"]
    return _markdown(heads, rows) if rows else ""


def _trials(lines: Sequence[Line]) -> dict[str, dict[float, float | None]]:
    """Loss on the selection rows by arm and learning rate; None where the run diverged."""
    found: dict[str, dict[float, float | None]] = {}
    for line in lines:
        if line["stage"] == "search":
            loss = None if line["diverged"] else line["selection"]["nll_per_token"]
            found.setdefault(line["arm"], {})[line["learning_rate"]] = loss
    return found


def _trial(by_rate: Mapping[float, float | None], rate: float, best: float | None) -> str:
    if rate not in by_rate:
        return ""
    loss = by_rate[rate]
    if loss is None:
        return "diverged"
    return f"**{loss:.3f}**" if rate == best else f"{loss:.3f}"


def _title(name: str) -> str:
    arm = find_arm(name)
    return arm.title if arm else name


def _spread(values: Sequence[float], digits: int) -> str:
    """Mean and, from two values on, the standard deviation over seeds."""
    if not values:
        return "–"
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
