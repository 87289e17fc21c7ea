"""Tables and texts, in a terminal and in a pipe."""

from __future__ import annotations

import io

from rich.console import Console

from budwood.cli._render import Table, highlighted, next_commands, overview, records


def printed(part, *, terminal: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=60, markup=False, highlight=False, emoji=False)
    console.print(part, soft_wrap=not terminal)  # as `_shell` prints it
    return file.getvalue()


def test_a_table_is_plain_in_a_pipe_and_ruled_in_a_terminal():
    table = Table(("name", "n"), [("[red]a", 5), ("b", 1000)])
    assert printed(table).split() == ["name", "n", "[red]a", "5", "b", "1,000"]
    assert "─" in printed(table, terminal=True)


def test_in_a_pipe_nothing_is_padded_to_a_long_cell():
    rows = [("a", "x" * 500, "end"), ("bb", "y", "of\nit")]
    assert printed(Table(("n", "long", "last"), rows)).splitlines() == [
        "n   long  last", "a   " + "x" * 500 + "  end", "bb  y  of", "      it",
    ]  # fmt: skip


def test_numbers_stand_to_the_right_and_yes_and_no_to_the_left():
    rows = [line.rstrip() for line in printed(Table(("n", "ok"), [(5, True), (1000, False)])).splitlines()]
    assert rows == ["    n  ok", "    5  yes", "1,000  no"]


def test_a_table_without_rows():
    assert printed(Table(("name", "n"), [])).split() == ["name", "n"]
    assert printed(records([])).strip() == ""


def test_an_overview_flattens_to_the_names_that_set_takes():
    [table] = overview({"a": {"b": {"c": 1}, "d": []}, "e": {}})
    assert table.rows == [("a.b.c", 1), ("a.d", []), ("e", {})]


def test_an_overview_gives_lists_of_mappings_tables_of_their_own():
    plain, name, table = overview({"a": {"rows": [{"x": 1}, {"x": 2}]}, "b": [1, 2]})
    assert plain.rows == [("b", [1, 2])]
    assert name.strip() == "a.rows:"
    assert table.rows == [[1], [2]]


def test_records_have_a_column_for_every_key():
    table = records([{"a": 1}, {"b": 2, "a": 3}])
    assert table.columns == ["a", "b"]
    assert table.rows == [[1, None], [3, 2]]


def test_highlighted_marks_stretches_once():
    pieces = [("a", False), ("b", True), ("c", True), ("d", False), ("e", True)]
    assert highlighted(pieces).plain == "a⟦bc⟧d⟦e⟧"
    assert "\x1b[" in printed(highlighted(pieces), terminal=True)
    assert highlighted([]).plain == ""


def test_next_commands_are_quoted():
    assert next_commands(["budwood", "eval", "a b"]) == "\nnext:\n  budwood eval 'a b'"
