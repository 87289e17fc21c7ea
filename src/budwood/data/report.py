"""What was read, kept and dropped, counted while rows pass."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from budwood.data.problems import LocatedError, Origin
from budwood.data.rows import Message, Row

if TYPE_CHECKING:
    from budwood.data.render import Encoded

FIRST = 5  # so many origins are kept for each reason


@dataclass(slots=True)
class Occurrences:
    """How often something happened, and where first."""

    count: int = 0
    first: list[Origin] = field(default_factory=list)

    def add(self, origin: Origin) -> None:
        self.count += 1
        if len(self.first) < FIRST:
            self.first.append(origin)

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count, "first": [str(origin) for origin in self.first]}


@dataclass
class DataReport:
    """Counts of rows, tokens and problems.

    Attributes:
        rows: rows read (bad ones included, in `check`).
        kept: rows that can be used.
        dropped: rows left out, by reason.
        remarks: rows that are used but look wrong, by reason.
        sequences: what the kept rows became; more than `kept` where turns could not share one.
        tokens: tokens of the kept sequences.
        supervised_tokens: those of them that the loss falls on.
        lengths: tokens of each kept sequence.
        duplicates: rows whose messages stood in an earlier row.
        shapes, roles: how many rows of each shape, messages of each role.
        train_rows, evaluation_rows: rows on either side of the split.
        overlap: training rows whose prompt is also in the evaluation file, where there is one.
        problems: what is wrong, as `{file, line, field, problem}`; the first ones, in `check` only.
        problem_count: how many there are.
    """

    rows: int = 0
    kept: int = 0
    dropped: dict[str, Occurrences] = field(default_factory=dict)
    remarks: dict[str, Occurrences] = field(default_factory=dict)
    sequences: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    lengths: list[int] = field(default_factory=list, repr=False)
    duplicates: int = 0
    shapes: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    train_rows: int = 0
    evaluation_rows: int = 0
    overlap: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)
    problem_count: int = 0
    _seen: set[tuple[Message, ...]] = field(default_factory=set, repr=False)

    def read(self, row: Row) -> None:
        """Count a row that was read."""
        self.rows += 1
        self.shapes[row.shape] += 1
        self.roles.update(message.role for message in row.messages)
        self.duplicates += row.messages in self._seen
        self._seen.add(row.messages)

    def drop(self, reason: str, origin: Origin) -> None:
        """Count a row that is left out."""
        self.dropped.setdefault(reason, Occurrences()).add(origin)

    def remark(self, reason: str, origin: Origin) -> None:
        """Count a row that is used but looks wrong."""
        self.remarks.setdefault(reason, Occurrences()).add(origin)

    def keep(self, sequences: Sequence[Encoded]) -> None:
        """Count a row that is used, with what it became."""
        self.kept += 1
        self.sequences += len(sequences)
        self.lengths += [len(one.input_ids) for one in sequences]
        self.tokens += sum(len(one.input_ids) for one in sequences)
        self.supervised_tokens += sum(one.supervised for one in sequences)

    def problem(self, error: LocatedError, limit: int) -> None:
        """Count a problem; list it if there are fewer than `limit`."""
        self.problem_count += 1
        if len(self.problems) < limit:
            self.problems.append(error.located())

    def to_dict(self) -> dict[str, Any]:
        """The report as `--json` prints it; lengths in tokens, 0 where nothing was kept."""
        lengths = self.lengths or [0]
        return {
            "rows": self.rows,
            "kept": self.kept,
            "dropped": {reason: where.to_dict() for reason, where in self.dropped.items()},
            "remarks": {reason: where.to_dict() for reason, where in self.remarks.items()},
            "sequences": self.sequences,
            "tokens": self.tokens,
            "supervised_tokens": self.supervised_tokens,
            "length_tokens": {
                "min": min(lengths),
                "median": statistics.median_low(lengths),
                "max": max(lengths),
            },
            "duplicates": self.duplicates,
            "shapes": dict(self.shapes),
            "roles": dict(self.roles),
            "train_rows": self.train_rows,
            "evaluation_rows": self.evaluation_rows,
            "overlap": self.overlap,
            "problems": self.problems,
            "problem_count": self.problem_count,
        }
