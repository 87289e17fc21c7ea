"""What an evaluation found: one record a row, and the means over rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from budwood.data.problems import Origin
from budwood.evals.paired import Difference, paired_difference
from budwood.storage import write_text


@dataclass(frozen=True, slots=True)
class RowRecord:
    """How one row went.

    Attributes:
        origin: file and line of the row.
        task: the name of its task, where the file gives one.
        tokens: its supervised tokens.
        nll: negative log-likelihood, nats a supervised token.
        forced_exact: whether every supervised token was the most likely one, given the right ones before it.
        references: the right answers, the learned one first.
        prediction: what the model writes by greedy decoding; None where nothing was generated, as in the next two.
        exact_match: 1.0 if the prediction equals a reference but for white space at its ends, else 0.0.
        rouge_l: ROUGE-L F1 of the prediction with its best reference.
    """

    origin: Origin
    task: str | None
    tokens: int
    nll: float
    forced_exact: bool
    references: tuple[str, ...]
    prediction: str | None = None
    exact_match: float | None = None
    rouge_l: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The record as a JSON object; the place of the row is `file` and `line`."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "origin"}
        return {"file": self.origin.file, "line": self.origin.line} | values | {"references": list(self.references)}


@dataclass(frozen=True)
class Means:
    """Means over rows.

    Attributes:
        rows: how many rows.
        tokens: their supervised tokens.
        nll: nats a token; each token counts alike.
        row_nll: nats a token; each row counts alike.
        forced_exact: the share of rows whose every supervised token was the most likely one.
        exact_match: the share of rows answered right; None where nothing was generated.
        rouge_l: mean ROUGE-L F1; None where nothing was generated.
    """

    rows: int
    tokens: int
    nll: float
    row_nll: float
    forced_exact: float
    exact_match: float | None
    rouge_l: float | None

    def to_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(Means)}


@dataclass(frozen=True)
class EvalResult(Means):
    """The means over all rows, and all that stands behind them.

    Attributes:
        records: one a row, in the order of the rows.
        by_task: the means of each task that the file names.
        dropped: rows longer than the model's context, which are in no figure.
        generated: rows whose answer was generated; that of the others is known from their likelihood.
        max_new_tokens: the limit of a generated answer; None where nothing was to be generated.
        batch_size: as asked for. In bf16 and fp16 it moves the last digits.
        seconds: wall time.
    """

    records: tuple[RowRecord, ...]
    by_task: Mapping[str, Means]
    dropped: int
    generated: int
    max_new_tokens: int | None
    batch_size: int | str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Everything but the records, as a JSON object."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "records"}
        return values | {"by_task": {task: means.to_dict() for task, means in self.by_task.items()}}


@dataclass(frozen=True)
class Comparison:
    """An adapter beside its base, on the same rows.

    Attributes:
        adapted, base: the two results.
        paired: for each metric that both have, adapted minus base with its 95 % interval over rows. Lower is better
            for `nll`, higher for the others.
    """

    adapted: EvalResult
    base: EvalResult
    paired: Mapping[str, Difference]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the records, as a JSON object."""
        paired = {metric: difference.to_dict() for metric, difference in self.paired.items()}
        return {"adapted": self.adapted.to_dict(), "base": self.base.to_dict(), "paired": paired}


def means_of(records: Sequence[RowRecord]) -> Means:
    """Return the means over at least one record."""
    tokens = sum(record.tokens for record in records)
    return Means(
        rows=len(records),
        tokens=tokens,
        nll=sum(record.nll * record.tokens for record in records) / tokens,
        row_nll=sum(record.nll for record in records) / len(records),
        forced_exact=sum(record.forced_exact for record in records) / len(records),
        exact_match=_mean([record.exact_match for record in records]),
        rouge_l=_mean([record.rouge_l for record in records]),
    )


def task_means(records: Sequence[RowRecord]) -> dict[str, Means]:
    """Return the means of each named task, in the order of their first rows."""
    tasks = dict.fromkeys(record.task for record in records if record.task is not None)
    return {task: means_of([record for record in records if record.task == task]) for task in tasks}


def compare_results(adapted: EvalResult, base: EvalResult) -> Comparison:
    """Put two results on the same rows side by side, with paired intervals (2,000 bootstrap samples, seed 0)."""
    assert [r.origin for r in adapted.records] == [r.origin for r in base.records], "results on the same rows"
    paired = {}
    for metric in ("nll", "forced_exact", "exact_match", "rouge_l"):
        pairs = list(_pairs(metric, adapted, base))
        if pairs:
            weights = [float(record.tokens) for record in base.records] if metric == "nll" else None
            ours, theirs = zip(*pairs, strict=True)
            paired[metric] = paired_difference(ours, theirs, weights)
    return Comparison(adapted, base, paired)


def write_records(result: EvalResult, path: str | Path) -> None:
    """Write one JSON object a row to `path` (JSON Lines), whole or not at all.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    lines = [json.dumps(record.to_dict(), ensure_ascii=False, allow_nan=False) for record in result.records]
    write_text(path, "".join(f"{line}\n" for line in lines))


def _pairs(metric: str, adapted: EvalResult, base: EvalResult) -> Iterator[tuple[float, float]]:
    """Yield the two values of each row; nothing where one of the results lacks the metric."""
    for a, b in zip(adapted.records, base.records, strict=True):
        ours, theirs = getattr(a, metric), getattr(b, metric)
        if ours is not None and theirs is not None:
            yield float(ours), float(theirs)


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
