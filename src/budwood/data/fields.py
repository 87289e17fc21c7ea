"""The fields of a record, read with the type they must have; what is wrong is an error that names the field."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from budwood.data.files import Record
from budwood.data.problems import LocatedError, described, shorten


@dataclass(frozen=True, slots=True)
class Fields:
    """One record whose fields are asked for by name and type."""

    record: Record

    def refuse(self, field: str, problem: str, wanted: str = "", action: str = "") -> NoReturn:
        raise LocatedError(problem, wanted=wanted, action=action, origin=self.record.origin, field=field)

    def text(self, field: str) -> str:
        return self.as_text(self.record.values[field], field)

    def answer(self, field: str) -> str:
        return self.as_answer(self.record.values[field], field)

    def as_text(self, value: Any, field: str) -> str:
        if not isinstance(value, str):
            self.refuse(field, f"the value is {described(value)}", "text (a string)")
        try:
            value.encode()
        except UnicodeEncodeError:
            self.refuse(field, f"the text holds half of a surrogate pair: {shorten(value)}", "valid Unicode")
        return value

    def as_answer(self, value: Any, field: str) -> str:
        if not self.as_text(value, field).strip():
            self.refuse(field, "the answer is empty: there is nothing to learn", "text", "remove the row, or fill it")
        return str(value)

    def as_list(self, value: Any, field: str, of: str) -> list[Any]:
        if not isinstance(value, list) or not value:
            found = "an empty list" if value == [] else described(value)
            self.refuse(field, f"the value is {found}", f"a list of {of}, with at least one")
        return value

    def as_weight(self, value: Any, field: str) -> float:
        """Read a factor; None and "" (an empty cell) stand for 1, and a cell of digits for its number."""
        try:
            number = 1.0 if value is None or value == "" else math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not (math.isfinite(number) and number >= 0):
            self.refuse(field, f"the weight is {shorten(value)}", "a finite number ≥ 0")
        return number


def listed(values: Iterable[object]) -> str:
    """Return the names of fields for a message, at most twelve."""
    names = [shorten(name) for name in values]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") if names else "none"
