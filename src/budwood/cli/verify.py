"""`budwood verify`: does the saved adapter do what the trained one did?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from budwood.cli._flags import Base, ForceBase, RunPath
from budwood.cli._render import records
from budwood.cli._shell import Answer
from budwood.errors import VerificationError


def verify(
    run: RunPath,
    base: Base = None,
    portable: Annotated[
        bool, typer.Option("--portable/--native-only", help="Also as a plain PEFT adapter, without budwood.")
    ] = True,
    force: ForceBase = False,
) -> Answer:
    """Check that a saved adapter does what the trained one did.

    \b
    Example:
      budwood verify runs/first
    """
    from budwood.run import verify_run

    report = verify_run(run, base=base, force=force, portable=portable).to_dict()
    return Answer(report, [checks(report), verdict(report)], exit_code(report), verdict(report))


def checks(report: dict[str, Any]) -> Any:
    """Return the checks of a report as a table."""
    return records(report["checks"])


def verdict(report: dict[str, Any]) -> str:
    """Return the report in one line."""
    failed = [check["name"] for check in report["checks"] if not check["ok"]]
    return f"not verified: {', '.join(failed)}" if failed or not report["ok"] else "verified"


def exit_code(report: dict[str, Any]) -> int:
    """Return 0 for a good report, else the exit code of a failed verification."""
    return 0 if report["ok"] else VerificationError.exit_code
