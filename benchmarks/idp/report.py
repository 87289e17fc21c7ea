"""The table, from the lines of the results alone: means, recovered share, and paired intervals against the bank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from budwood.evals.paired import paired_difference, paired_t_test

Line = Mapping[str, Any]
REFERENCE = "bank, likelihood"


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
        if name == "bank":
            rows += _bank_rows(of)
            rows = [Row(r.name, r.parameters, r.nll, accuracy if r.name == REFERENCE else ()) for r in rows]
        else:
            rows.append(Row(name, of[0]["parameters"], np.array([line["nll"] for line in of]), accuracy))
    return rows


def _bank_rows(lines: Sequence[Line]) -> list[Row]:
    ways: dict[str, list[np.ndarray]] = {}
    for line in lines:
        alone = np.array(list(line["alone"].values())).T  # texts, prompts
        at = np.arange(len(alone))
        weights = np.array(line["tokens"])
        best = (alone * weights[:, None]).sum(axis=0).argmin()
        found = {f"always {name}": alone[:, i] for i, name in enumerate(line["alone"])}
        found |= {"best constant": alone[:, best], "random": alone.mean(axis=1), "oracle": alone.min(axis=1)}
        found |= {name: alone[at, chosen] for name, chosen in line["chosen"].items()}
        found["logit ensemble"] = np.array(line["ensemble"])
        for name, nll in found.items():
            ways.setdefault(f"bank, {name}", []).append(nll)
    return [Row(name, lines[0]["parameters"], np.stack(nll)) for name, nll in ways.items()]


def report(lines: Iterable[Line]) -> str:
    """Return the tables as Markdown, one for each setting."""
    tables: dict[str, list[Line]] = {}
    for line in lines:
        tables.setdefault(line["table"], []).append(line)
    return "\n\n".join(_table(name, of) for name, of in tables.items()) or "no cell is finished yet"


def _table(name: str, lines: Sequence[Line]) -> str:
    first = lines[0]
    tokens, domains = np.array(first["tokens"], dtype=float), np.array(first["domains"])
    rows = rows_of(lines)
    means = {row.name: _mean(row.nll, tokens) for row in rows}
    lost = means.get("compressed", np.nan) - means.get("uncompressed", np.nan)
    reference = next((row for row in rows if row.name == REFERENCE), None)
    kinds = list(dict.fromkeys(first["domains"]))
    head = ["system", "parameters", "seeds", "nats a token", "recovered", *kinds, "against the bank, 95 %", "accuracy"]
    body = []
    for row in sorted(rows, key=lambda row: means[row.name]):
        share = (means["compressed"] - means[row.name]) / lost if lost > 0 else np.nan
        own = [f"{_mean(row.nll[:, domains == kind], tokens[domains == kind]):.3f}" for kind in kinds]
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
    """Return the row minus the bank: the mean over seeds, its bootstrap interval over texts, and t over seeds."""
    if reference is None or row is reference:
        return ""
    ours, theirs = row.nll.mean(axis=0), reference.nll.mean(axis=0)
    gap = paired_difference(ours.tolist(), theirs.tolist(), tokens.tolist())
    text = f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
    seeds = min(len(row.nll), len(reference.nll))
    if seeds < 2:
        return text
    pairs = [[_mean(one.nll[i : i + 1], tokens) for i in range(seeds)] for one in (row, reference)]
    return f"{text}, p = {paired_t_test(*pairs).p:.2g}"


def _histograms(lines: Sequence[Line]) -> list[str]:
    """Return how often each selector chose each prompt, over all seeds."""
    told = []
    for line in lines:
        if line["system"] == "bank":
            names = list(line["alone"])
            for selector, chosen in line["chosen"].items():
                counts = Counter(chosen)
                shares = ", ".join(f"{one} {counts.get(i, 0)}" for i, one in enumerate(names))
                told.append(f"- chosen by {selector}, seed {line['seed']}: {shares}")
    return ["", *told] if told else []
