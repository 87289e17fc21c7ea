"""`budwood report` on the command line."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import only_object
from tests.cli.stand_ins import last


def test_report_prints_where_the_page_is(budwood_cli):
    assert budwood_cli("report", "runs/a").stdout == "runs/[a]/report/index.html\n"
    assert last("write_report") == {"run": Path("runs/a"), "out": None}
    found = only_object(budwood_cli("report", "runs/a", "-o", "pages", "--json").stdout)
    assert found == {"report": "runs/[a]/report/index.html", "plots": []}
    assert last("write_report")["out"] == Path("pages")
