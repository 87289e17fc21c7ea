"""What people see: tables and texts that look well in a terminal and stay plain in a pipe."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from budwood._texts import flat, shown

if TYPE_CHECKING:  # rich is loaded when something is shown, not for `--help`
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

ALIGNED = 32  # characters; in a pipe a column with a longer cell is not padded


@dataclass(frozen=True)
class Table:
    """Rows of values under named columns: ruled in a terminal, plain lines elsewhere, aligned if cells are short."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        import rich.box
        import rich.table
        from rich.text import Text

        if not console.is_terminal:
            yield Text("\n".join(self._lines()))
            return
        table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_header=any(self.columns))
        for name, numbers in zip(self.columns, self._numeric()):
            table.add_column(name, justify="right" if numbers else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*map(shown, row))
        yield table

    def _numeric(self) -> list[bool]:
        """Return for each column whether it holds numbers only."""
        columns = zip(*self.rows) if self.rows else [()] * len(self.columns)
        return [bool(values) and all(map(_is_number, values)) for values in columns]

    def _lines(self) -> list[str]:
        """Return the rows as lines without a space at their ends; a cell of several lines goes on under itself."""
        cells = [[shown(value).split("\n") for value in row] for row in self.rows]
        cells = [[[name] for name in self.columns]] * any(self.columns) + cells
        lines = [line for row in cells for line in itertools.zip_longest(*row, fillvalue="")]
        widths = [max(map(len, column), default=0) for column in zip(*lines)]
        widths = [width if width <= ALIGNED else 0 for width in widths]
        sides = [str.rjust if numbers else str.ljust for numbers in self._numeric()]
        made = ["  ".join(side(cell, width) for side, cell, width in zip(sides, line, widths)) for line in lines]
        return [line.rstrip() for line in made]


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
