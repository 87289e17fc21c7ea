"""`budwood eval`: the adapted model beside its base, on your rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from budwood._texts import shown
from budwood.cli._flags import Base, ForceBase, RunPath
from budwood.cli._render import Table
from budwood.cli._shell import Answer, Quiet


def evaluate(
    run: RunPath,
    rows: Annotated[Path, typer.Option("--rows", metavar="FILE", help="Labelled rows, not those of the training.")],
    base: Base = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N rows.")] = None,
    force: ForceBase = False,
    quiet: Quiet = False,
) -> Answer:
    """Measure an adapted model on rows, its base beside it.

    \b
    Example:
      budwood eval runs/first --rows test.jsonl
    """
    from budwood import _inspect

    found = _inspect.evaluate(run, rows=rows, base=base, limit=limit, force=force, progress=not quiet)
    base, adapted = found["base"], found["adapted"]
    brief = ", ".join(f"{name} {shown(adapted[name])} (base {shown(base[name])})" for name in adapted)
    return Answer(found, [beside(found)], brief=brief)


def beside(found: dict[str, Any]) -> Table:
    """Return the figures of `_inspect.evaluate` as a table: metric, base, adapted."""
    base, adapted = found["base"], found["adapted"]
    return Table((f"{found['rows']} rows", "base", "adapted"), [(name, base[name], adapted[name]) for name in adapted])
