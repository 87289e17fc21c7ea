"""`budwood adapt`: what you have, in; a run with a verified adapter, out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

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
from budwood.cli._render import next_commands
from budwood.cli._results import expected, measured
from budwood.cli._shell import Answer, Quiet
from budwood.reports.shortfall import shortfall


def adapt(
    model: Model = None,
    examples: ExampleRows = None,
    documents: Texts = None,
    instruction: Task = None,
    repair: Plain = None,
    example: Pairs = None,
    method: MethodName = None,
    tuner: TunerName = None,
    # A flag is hidden as long as no method accepts it; a test holds this to what the methods declare.
    prior: Annotated[
        Path | None, typer.Option(metavar="PRIOR", help="What `budwood prepare` made for this base (taalm).")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="W", help="What weights the words of documents: taalm, uniform, entropy, … (taalm)."),
    ] = None,
    rehearse: Annotated[Path | None, typer.Option(metavar="FILE|DIR", help="Older text to mix in (taalm).")] = None,
    probes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Questions about the documents, to see what was learned (taalm)."),
    ] = None,
    update: Annotated[
        str | None,
        typer.Option(metavar="U", help="How the adapter moves: adamw, or recadam, pulled to its start (taalm)."),
    ] = None,
    base_run: Annotated[
        Path | None, typer.Option("--base-run", metavar="RUN", help="Go on from the adapter of this run (taalm).")
    ] = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="RUN", help="The folder to write.")] = None,
    seed: Seed = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the interrupted run in -o RUN; nothing else is needed.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show rows, parameters and steps; write nothing. --json shows the recipe."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is in RUN.")] = False,
    quiet: Quiet = False,
) -> Answer:
    """Adapt a model to examples, documents, an instruction or text.

    \b
    Example:
      budwood adapt smollm2 --examples rows.jsonl -o runs/first --seed 0
      budwood adapt small-3bit --repair text.txt -o runs/repaired
    """
    from budwood import _adapt
    from budwood._request import Request

    evidence = parse_evidence(examples, documents, instruction, repair, example)
    learner = {"prior": prior, "weights": weights, "rehearse": rehearse, "update": update, "probes": probes}
    learner |= {"base_run": base_run}
    overrides = parse_settings(settings) | {name: str(value) for name, value in learner.items() if value}
    request = Request(model, evidence, method, tuner, seed, recipe, overrides)
    if dry_run:
        found = _adapt.preview(request, out=out, resume=resume, force=force, progress=not quiet)
        steps, parameters = found["steps"], found["trainable_params"]
        return Answer(found, expected(found), brief=f"{steps} steps, {parameters} trained parameters")
    run = _adapt.carry_out(request, out=out, resume=resume, force=force, progress=not quiet)
    summary = {"run": run.path, **run.summary()}
    summary["shortfall"] = shortfall(summary)
    return Answer(summary, [*measured(summary), _after(run.path, summary)], brief=str(run.path))


def _after(run: Path, summary: Mapping[str, Any]) -> str:
    form = "prompts" if "prompts" in summary else "lora"
    report = ["budwood", "report", run]
    if summary["shortfall"]:  # nothing to use: where it went wrong is what to look at
        return next_commands(report)
    return next_commands(
        *([report] if "recall" in summary else []),  # the one place with facts and words
        ["budwood", "generate", run, "--prompt", "TEXT"],
        ["budwood", "eval", run, "--rows", "FILE"],
        ["budwood", "export", run, "--to", form, "-o", "DIR"],
    )
