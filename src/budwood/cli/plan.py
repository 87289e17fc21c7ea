"""`budwood plan`: what an adaptation would take and give, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budwood.cli._flags import (
    ExampleRows,
    MethodName,
    Model,
    Pairs,
    Plain,
    RecipeFile,
    Seed,
    Settings,
    Task,
    Texts,
    TunerName,
    parse_evidence,
    parse_settings,
)
from budwood.cli._render import Table, records
from budwood.cli._shell import Answer

if TYPE_CHECKING:
    from rich.console import RenderableType


def plan(
    model: Model = None,
    examples: ExampleRows = None,
    documents: Texts = None,
    instruction: Task = None,
    repair: Plain = None,
    example: Pairs = None,
    method: MethodName = None,
    tuner: TunerName = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="RUN", help="The folder to plan for.")] = None,
    seed: Seed = None,
) -> Answer:
    """Show parameters, memory, steps and exports; recommend a method.

    \b
    Example:
      budwood plan smollm2 --examples rows.jsonl
    """
    from budwood import _plan
    from budwood._request import Request

    evidence = parse_evidence(examples, documents, instruction, repair, example)
    request = Request(model, evidence, method, tuner, seed, recipe, parse_settings(settings))
    found = _plan.plan(request, out=out)
    return Answer(found, _body(found), brief=found["command"] or found["method"]["why"])


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
        ("trained parameters", found["trainable_params"]),
        *((f"  beside {row['adapter']}", row["parameters"]) for row in (found["comparison"] or ())[1:]),
        ("adapter file", f"about {found['adapter_bytes']:,} bytes"),
        ("memory", f"about {memory['total']:,} MiB ({parts})"),
        ("  for a batch of", f"{batch['rows']} rows of {batch['length']} tokens"),
        ("steps", found["steps"] if found["steps"] is not None else "unknown: no rows were given"),
        ("tokens", f"about {found['tokens']:,}" if found["tokens"] is not None else "unknown: no rows were given"),
        ("time", time),
    ]
    return Table(("", ""), rows)
