"""What people see: tables and texts that look well in a terminal and stay plain in a pipe."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from budwood._texts import flat, shown

if TYPE_CHECKING:  # rich is loaded when something is shown, not for `--help`
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text


@dataclass(frozen=True)
class Table:
    """Rows of values under named columns: ruled in a terminal, aligned by spaces elsewhere."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        import rich.box
        import rich.table

        box = rich.box.SIMPLE_HEAD if console.is_terminal else None
        table = rich.table.Table(box=box, pad_edge=False, show_header=any(self.columns))
        for name, values in zip(self.columns, zip(*self.rows) if self.rows else [()] * len(self.columns)):
            numbers = values and all(map(_is_number, values))
            table.add_column(name, justify="right" if numbers else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*map(shown, row))
        yield table


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def overview(values: Mapping[str, Any]) -> list[Table | str]:
    """Return a nested mapping as a table of dotted names and values; then each list of mappings as its own table."""
    leaves = list(flat(values))
    lists = [(name, value) for name, value in leaves if _is_records(value)]
    plain = Table(("", ""), [(name, value) for name, value in leaves if not _is_records(value)])
    return [plain, *(part for name, rows in lists for part in (f"\n{name}:", records(rows)))]


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def records(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return mappings as a table with a column for each key, in the order of first appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Table(columns, [[row.get(name) for name in columns] for row in rows])


def highlighted(pieces: Iterable[tuple[str, bool]]) -> Text:
    """Join (text, trained) pieces; trained stretches are in colour where there is colour, and always in ⟦ ⟧."""
    from rich.text import Text

    text, inside = Text(), False
    for piece, trained in pieces:
        if trained != inside:
            text.append("⟦" if trained else "⟧")
        text.append(piece, "bold green" if trained else "")
        inside = trained
    return text.append("⟧" if inside else "")


def next_commands(*commands: Sequence[Any]) -> str:
    """Return commands, each a sequence of words, as text to copy into a shell."""
    return "\nnext:\n" + "\n".join("  " + shlex.join(map(str, words)) for words in commands)
