"""Values as people read them: in the terminal, on a report's page, on a model card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def shown(value: Any) -> str:
    """Return `value` with four significant digits, thousands apart, and `-` for nothing."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "-"
    return "-" if value in (None, "", {}) else str(value)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested mapping under dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
