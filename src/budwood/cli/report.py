"""`budwood report`: one HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from budwood.cli._shell import Answer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The folder of the page; default RUN/report.")
    ] = None,
) -> Answer:
    """Write a page about a run: one HTML file that opens offline.

    \b
    Example:
      budwood report runs/first
    """
    from budwood.reports.report import write_report

    found = write_report(run, out)
    return Answer(found, [str(found["report"])])
