"""Where a problem with data is: `Origin`, and the `DataError` that carries one.

Readers that go on after a bad row (`budwood data check`) yield these errors in place of the row; the others raise
the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeVar

from budwood.errors import DataError

LINES = (".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".md")  # suffixes of files that have lines
EXAMPLE = '{"prompt": "What is 2 + 2?", "completion": "4"}'

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Origin:
    """The place a row came from.

    Attributes:
        file: the path as the user gave it.
        line: the line on which the row starts, from 1; the number of the row where rows are not lines (JSON, Parquet,
            datasets); 0 stands for the file as a whole.
    """

    file: str
    line: int = 0

    def __str__(self) -> str:
        unit = "line" if PurePath(self.file).suffix.lower() in LINES else "row"
        return f"{self.file}, {unit} {self.line}" if self.line else self.file


class LocatedError(DataError):
    """A `DataError` that knows its place.

    Args:
        problem: what is wrong, without the place.
        wanted: what would have been right.
        action: what the user can do now.
        origin: file and line.
        field: the field of the row, where there is one.
    """

    def __init__(
        self, problem: str, *, wanted: str = "", action: str = "", origin: Origin | None = None, field: str = ""
    ) -> None:
        self.problem, self.origin, self.field = problem, origin, field
        places = [str(origin)] if origin else []
        places += [f"field {field!r}"] if field else []
        super().__init__(f"{', '.join(places)}: {problem}" if places else problem, wanted=wanted, action=action)

    def located(self) -> dict[str, Any]:
        """The problem as `check` lists it: `{file, line, field, problem}`; line and field may be None."""
        origin = self.origin or Origin("")
        return {
            "file": origin.file,
            "line": origin.line or None,
            "field": self.field or None,
            "problem": " · ".join(part for part in (self.problem, self.wanted, self.action) if part),
        }

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.problem, self.wanted, self.action, self.origin, self.field)


def _rebuild(problem: str, wanted: str, action: str, origin: Origin | None, field: str) -> LocatedError:
    return LocatedError(problem, wanted=wanted, action=action, origin=origin, field=field)


def or_raise(found: Iterable[Found | LocatedError]) -> Iterator[Found]:
    """Yield what was found; raise the first problem in its place."""
    for one in found:
        if isinstance(one, LocatedError):
            raise one
        yield one


def described(value: object) -> str:
    """Return a value of JSON or YAML for a message, with its kind in plain words: `the number 3`, `a list [1, 2]`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    kinds = {str: "the text", int: "the number", float: "the number", list: "a list", dict: "an object"}
    kind = next((words for known, words in kinds.items() if isinstance(value, known)), "")
    return f"{kind} {shorten(value)}".strip()


def shorten(value: object, limit: int = 60) -> str:
    """Return `repr(value)`, cut in the middle to about `limit` characters, for a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 20]} … {text[-15:]}"
