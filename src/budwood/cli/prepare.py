"""`budwood prepare`: what a method needs once for a base, such as TAALM's scorer of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budwood._texts import shown
from budwood.cli._flags import Settings, parse_settings
from budwood.cli._render import Table, next_commands
from budwood.cli._shell import Answer, Quiet

if TYPE_CHECKING:
    from rich.console import RenderableType


def prepare(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="smollm2, org/name, a folder, or *.gguf.")],
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A method that needs a prior: taalm.")],
    corpus: Annotated[
        list[Path],
        typer.Option("--corpus", metavar="FILE", help="Rows: facts, questions about documents, sessions. Repeatable."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PRIOR", help="The folder to write.")],
    base_run: Annotated[
        Path | None,
        typer.Option("--base-run", metavar="RUN", help="Make it for adapters that start from this run's."),
    ] = None,
    settings: Settings = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same prior.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted preparation in PRIOR.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is in PRIOR.")] = False,
    quiet: Quiet = False,
) -> Answer:
    """Train a method's prior for a base: taalm's scorer of tokens.

    \b
    A row of the corpus, one JSON object a line, is one of:
      {"document": TEXT, "question": TEXT, "answer": TEXT}
      {"evidence", "subject", "relation", "object", "task_descriptive", "task_schematic"}: six texts, a fact
      {"session": TEXT, "next_session": TEXT}

    \b
    Example:
      budwood prepare smollm2 taalm --corpus facts.jsonl -o priors/scorer
    """
    from budwood import _prepare

    request = _prepare.PriorRequest(model, method, tuple(corpus), seed, parse_settings(settings), base_run=base_run)
    if dry_run:
        found = _prepare.outline_prior(request, out, resume=resume, force=force)
        head = f"{out}, not written: this is a dry run\n"
        return Answer(found, [head, _table(found)], brief=f"{found['steps']} steps on {found['texts']} texts")
    prior = _prepare.make_prior(request, out, resume=resume, force=force, progress=not quiet)
    after = next_commands(["budwood", "adapt", model, "--documents", "DIR", "--prior", out])
    body: list[RenderableType] = [f"{out}: a prior of {method} for {model}\n", _table(prior.metrics), after]
    return Answer({"prior": prior.path, **prior.metrics}, body, brief=str(prior.path))


def _table(found: dict[str, Any]) -> Table:
    return Table(("", ""), [(name.replace("_", " "), shown(value)) for name, value in found.items() if name != "out"])
