"""The table, from the lines of the results alone: means, recovered share, and paired intervals against the bank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from budwood.evals.paired import paired_t_test

from .setting import UNSEEN

Line = Mapping[str, Any]
REFERENCE = "bank, likelihood"
RESAMPLES = 4000


@dataclass(frozen=True, eq=False)
class Row:
    """A system over its seeds: nats a token of each text, (seeds, texts)."""

    name: str
    parameters: int
    nll: np.ndarray
    accuracy: tuple[float, ...] = ()


def rows_of(lines: Sequence[Line]) -> list[Row]:
    """Return the rows of one table; the bank gives several, by how its prompt is chosen."""
    systems: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line["seed"]):
        systems.setdefault(line["system"], []).append(line)
    rows = []
    for name, of in systems.items():
        accuracy = tuple(line["accuracy"]["accuracy"] for line in of if "accuracy" in line)
        if "alone" in of[0]:
            rows += _bank_rows(name, of)
            rows = [Row(r.name, r.parameters, r.nll, accuracy if r.name == REFERENCE else ()) for r in rows]
        else:
            rows.append(Row(name, of[0]["parameters"], np.array([line["nll"] for line in of]), accuracy))
    return rows


def _bank_rows(bank: str, lines: Sequence[Line]) -> list[Row]:
    ways: dict[str, list[np.ndarray]] = {}
    for line in lines:
        alone = np.array(list(line["alone"].values())).T  # texts, prompts
        at = np.arange(len(alone))
        weights = np.array(line["tokens"]) * (np.array(line["domains"]) != UNSEEN)
        best = (alone * weights[:, None]).sum(axis=0).argmin()
        found = {f"always {name}": alone[:, i] for i, name in enumerate(line["alone"])}
        found |= {"best constant": alone[:, best], "random": alone.mean(axis=1), "oracle": alone.min(axis=1)}
        found |= {name: alone[at, chosen] for name, chosen in line["chosen"].items()}
        found["logit ensemble"] = np.array(line["ensemble"])
        for name, nll in found.items():
            ways.setdefault(f"{bank}, {name}", []).append(nll)
    return [Row(name, lines[0]["parameters"], np.stack(nll)) for name, nll in ways.items()]


def report(lines: Iterable[Line]) -> str:
    """Return the tables as Markdown, one for each setting."""
    tables: dict[str, list[Line]] = {}
    for line in lines:
        tables.setdefault(line["table"], []).append(line)
    return "\n\n".join(_table(name, of) for name, of in tables.items()) or "no cell is finished yet"


def _table(name: str, lines: Sequence[Line]) -> str:
    first = lines[0]
    counts, domains = np.array(first["tokens"], dtype=float), np.array(first["domains"])
    tokens = counts * (domains != UNSEEN)  # the control has its column, and no part in the mean
    rows = rows_of(lines)
    means = {row.name: _mean(row.nll, tokens) for row in rows}
    lost = means.get("compressed", np.nan) - means.get("uncompressed", np.nan)
    reference = next((row for row in rows if row.name == REFERENCE), None)
    kinds = list(dict.fromkeys(first["domains"]))
    head = ["system", "parameters", "seeds", "nats a token", "recovered", *kinds, "against the bank, 95 %", "accuracy"]
    body = []
    for row in sorted(rows, key=lambda row: means[row.name]):
        share = (means["compressed"] - means[row.name]) / lost if lost > 0 else np.nan
        own = [f"{_mean(row.nll[:, domains == kind], counts[domains == kind]):.3f}" for kind in kinds]
        against = _against(row, reference, tokens)
        accuracy = f"{np.mean(row.accuracy):.3f}" if row.accuracy else ""
        mean = f"{means[row.name]:.3f}"
        body.append(
            [row.name, f"{row.parameters:,}", str(len(row.nll)), mean, f"{share:.0%}", *own, against, accuracy]
        )
    lines_of = [head, ["---"] * len(head), *body]
    title = f"Table {name}: {first['models'][0]}, before compression {first['models'][1]}; {first['sizes']}"
    return "\n".join([title, "", *("| " + " | ".join(cells) + " |" for cells in lines_of), *_histograms(lines)])


def _mean(nll: np.ndarray, tokens: np.ndarray) -> float:
    return float((nll * tokens).sum() / (tokens.sum() * len(nll)))


def _against(row: Row, reference: Row | None, tokens: np.ndarray) -> str:
    """Return the row minus the bank, seed by seed: the mean, its bootstrap interval, and t over seeds."""
    if reference is None or row is reference:
        return ""
    seeds = max(1, min(len(row.nll), len(reference.nll)))
    gaps = row.nll[:seeds] - reference.nll[:seeds]
    low, high = _interval(gaps, tokens)
    text = f"{_mean(gaps, tokens):+.3f} [{low:+.3f}, {high:+.3f}]"
    if min(len(row.nll), seeds) < 2:
        return text
    pairs = [[_mean(one.nll[i : i + 1], tokens) for i in range(seeds)] for one in (row, reference)]
    return f"{text}, p = {paired_t_test(*pairs).p:.2g}"


def _interval(gaps: np.ndarray, tokens: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the mean of (seeds, texts), both resampled."""
    rng = np.random.default_rng(0)
    seeds, texts = gaps.shape
    means = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        drawn = rng.integers(texts, size=texts)
        means[i] = _mean(gaps[rng.integers(seeds, size=seeds)][:, drawn], tokens[drawn])
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def _histograms(lines: Sequence[Line]) -> list[str]:
    """Return how often each selector chose each prompt, over all seeds."""
    told = []
    for line in lines:
        if "alone" in line:
            names = list(line["alone"])
            for selector, chosen in line["chosen"].items():
                counts = Counter(chosen)
                shares = ", ".join(f"{one} {counts.get(i, 0)}" for i, one in enumerate(names))
                told.append(f"- {line['system']}: chosen by {selector}, seed {line['seed']}: {shares}")
    return ["", *told] if told else []
