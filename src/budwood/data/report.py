"""What was read, kept and dropped, counted while rows pass."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from budwood.data.problems import LocatedError, Origin
from budwood.data.rows import Message, Row
from budwood.errors import DataError

if TYPE_CHECKING:
    from budwood.data.render import Encoded

FIRST = 20  # so many origins are kept for each reason
LISTED = 20  # so many problems are listed; all are counted

Progress = Callable[[str, int, int], None]  # called with what is done, how much of it, and out of how much


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
        train_rows, evaluation_rows: rows on either side of the split; None where nothing was split.
        overlap: training rows whose prompt is also in the evaluation file; None where there is no such file.
        problems: what is wrong; the first ones.
        problem_count: how many there are.
        rendered: whether rows became tokens; without a tokenizer there is nothing to count of sequences and tokens.
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
    train_rows: int | None = None
    evaluation_rows: int | None = None
    overlap: int | None = None
    problems: list[LocatedError] = field(default_factory=list)
    problem_count: int = 0
    rendered: bool = True
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

    def problem(self, error: LocatedError) -> None:
        """Count a problem; list it if it is one of the first."""
        self.problem_count += 1
        if len(self.problems) < LISTED:
            self.problems.append(error)

    def require_good(self) -> None:
        """Raise what is wrong, if anything is: a single problem as it is, several as one error that lists them.

        Raises:
            DataError: there are problems.
        """
        if self.problem_count == 1:
            raise self.problems[0]
        if self.problem_count:
            rest = self.problem_count - len(self.problems)
            lines = [f"{self.problem_count} problems in the data:", *(problem.got for problem in self.problems)]
            raise DataError(
                "\n  ".join(lines + [f"and {rest} more"] * (rest > 0)),
                action="correct these rows; `budwood data check` says of each what was wanted",
            )

    def to_dict(self) -> dict[str, Any]:
        """The report as `--json` prints it, without what was not counted; lengths are in tokens."""
        return {
            "rows": self.rows,
            "kept": self.kept,
            "dropped": {reason: where.to_dict() for reason, where in self.dropped.items()},
            "remarks": {reason: where.to_dict() for reason, where in self.remarks.items()},
            **(self._tokens() if self.rendered else {}),
            "duplicates": self.duplicates,
            "shapes": dict(self.shapes),
            "roles": dict(self.roles),
            **{name: value for name, value in self._split().items() if value is not None},
            "problems": [problem.located() for problem in self.problems],
            "problem_count": self.problem_count,
        }

    def _tokens(self) -> dict[str, Any]:
        return {
            "sequences": self.sequences,
            "tokens": self.tokens,
            "supervised_tokens": self.supervised_tokens,
            **({"length_tokens": _spread(self.lengths)} if self.lengths else {}),
        }

    def _split(self) -> dict[str, int | None]:
        return {
            "train_rows": self.train_rows,
            "evaluation_rows": self.evaluation_rows,
            "overlap": self.overlap,
        }


def _spread(lengths: list[int]) -> dict[str, int]:
    return {"min": min(lengths), "median": statistics.median_low(lengths), "max": max(lengths)}
