"""`budwood plan`: what an adaptation would take and give, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budwood.cli._flags import Model, Settings, parse_settings
from budwood.cli._render import Table, records
from budwood.cli._shell import Answer
from budwood.cli.adapt import _evidence

if TYPE_CHECKING:
    from rich.console import RenderableType


def plan(
    model: Model,
    examples: Annotated[
        list[Path] | None, typer.Option("--examples", metavar="FILE", help="Labelled rows. Repeatable.")
    ] = None,
    documents: Annotated[
        list[Path] | None, typer.Option("--documents", metavar="FILE|DIR", help="Text with new facts. Repeatable.")
    ] = None,
    instruction: Annotated[
        str | None, typer.Option("--instruction", metavar="TEXT|@FILE", help="The task in words.")
    ] = None,
    repair: Annotated[
        list[Path] | None,
        typer.Option("--repair", metavar="FILE", help="Plain text for a compressed model. Repeatable."),
    ] = None,
    example: Annotated[
        list[str] | None, typer.Option("--example", metavar="'IN => OUT'", help="Goes with --instruction. Repeatable.")
    ] = None,
    method: Annotated[str | None, typer.Option(metavar="M", help="Without it, one is recommended.")] = None,
    tuner: Annotated[str | None, typer.Option(metavar="T", help="Where the new parameters live.")] = None,
    recipe: Annotated[Path | None, typer.Option(metavar="FILE", help="A recipe in YAML; flags override it.")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="RUN", help="The folder to plan for.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of the run.")] = None,
) -> Answer:
    """Show parameters, memory, steps and exports; recommend a method.

    \b
    Example:
      budwood plan smollm2 --examples rows.jsonl
    """
    from budwood import _plan

    given = (examples, documents, instruction, repair, example)
    found = _plan.plan(
        model,
        _evidence(*given) if any(value is not None for value in given) else None,
        method=method,
        tuner=tuner,
        recipe=recipe,
        overrides=parse_settings(settings),
        out=out,
        seed=seed,
    )
    return Answer(found, _body(found))


def _body(found: dict[str, Any]) -> list[RenderableType]:
    method, model = found["method"], found["model"]
    base = f"{model['reference']}: {model['class']}, {model['parameters']:,} parameters"
    head = f"{base}\n\nmethod: {method['name']}\n  {method['why']}"
    if not method["built"]:
        return [head, f"  until then: {method['instead']}"]
    return [
        f"{head}\n  learns {method['learns']}\n",
        _figures(found),
        f"\nmemory is an estimate: {found['memory_formula']}",
        "\nexports:",
        records([{**row, "possible": "yes" if row["possible"] else "no"} for row in found["exports"]]),
        "\ncommand:\n  " + found["command"],
    ]


def _figures(found: dict[str, Any]) -> Table:
    memory, batch, seconds = found["memory_mib"], found["memory_batch"], found["seconds"]
    time = seconds["why"] if seconds["estimate"] is None else f"about {seconds['estimate']:,} s ({seconds['why']})"
    parts = ", ".join(f"{name} {memory[name]:,}" for name in ("base", "adapter", "activations", "logits"))
    rows = [
        ("trained parameters", found["trainable_parameters"]),
        *((f"  beside {row['adapter']}", row["parameters"]) for row in (found["comparison"] or ())[1:]),
        ("adapter file", f"about {found['adapter_bytes']:,} bytes"),
        ("memory", f"about {memory['total']:,} MiB ({parts})"),
        ("  for a batch of", f"{batch['rows']} rows of {batch['length']} tokens"),
        ("steps", found["steps"] if found["steps"] is not None else "unknown: no rows were given"),
        ("tokens", f"about {found['tokens']:,}" if found["tokens"] is not None else "unknown: no rows were given"),
        ("time", time),
    ]
    return Table(("", ""), rows)
