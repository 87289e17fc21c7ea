"""`budwood adapt`: what you have, in; a run with a verified adapter, out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budwood.cli._flags import Model, Settings, parse_settings
from budwood.cli._render import next_commands, overview
from budwood.cli._shell import Answer, Quiet
from budwood.errors import DataError, UsageError

if TYPE_CHECKING:
    from budwood.evidence import Evidence


def adapt(
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
    method: Annotated[
        str | None, typer.Option(metavar="M", help="See `budwood methods`; the evidence decides.")
    ] = None,
    tuner: Annotated[str | None, typer.Option(metavar="T", help="Where the new parameters live.")] = None,
    prior: Annotated[Path | None, typer.Option(metavar="P", help="What the method prepared for this base.")] = None,
    weights: Annotated[str | None, typer.Option(metavar="W", help="A rule for the weights of tokens.")] = None,
    rehearse: Annotated[Path | None, typer.Option(metavar="FILE", help="Old rows to mix in.")] = None,
    update: Annotated[str | None, typer.Option(metavar="U", help="A rule for the update.")] = None,
    recipe: Annotated[Path | None, typer.Option(metavar="FILE", help="A recipe in YAML; flags override it.")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="RUN", help="The folder to write.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same seed gives the same adapter.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the recipe, parameters and steps; write nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is in RUN.")] = False,
    quiet: Quiet = False,
) -> Answer:
    """Adapt a model to examples, documents, an instruction or text.

    \b
    Example:
      budwood adapt smollm2 --examples rows.jsonl -o runs/first --seed 0
    """
    from budwood import _adapt

    evidence = _evidence(examples, documents, instruction, repair, example)
    shorthands = {"prior": prior, "weights": weights, "rehearse": rehearse, "update": update}
    overrides = parse_settings(settings) | {name: str(value) for name, value in shorthands.items() if value}
    choices: dict[str, Any] = {"method": method, "tuner": tuner, "out": out, "seed": seed, "recipe": recipe}
    choices |= {"overrides": overrides, "force": force}
    if dry_run:
        plan = _adapt.preview(model, evidence, **choices)
        return Answer(plan, overview(plan))
    run = _adapt.adapt(model, evidence, **choices, resume=resume, progress=not quiet)
    found = {"run": run.path, **run.summary()}
    return Answer(found, [*overview(found), _after(run.path)])


def _after(run: Path) -> str:
    return next_commands(
        ["budwood", "generate", run, "--prompt", "TEXT"],
        ["budwood", "eval", run, "--rows", "FILE"],
        ["budwood", "export", run, "--to", "lora", "-o", "DIR"],
    )


def _evidence(
    examples: list[Path] | None,
    documents: list[Path] | None,
    instruction: str | None,
    repair: list[Path] | None,
    pairs: list[str] | None,
) -> Evidence:
    from budwood.evidence import Documents, Examples, Instruction, Repair

    given: dict[str, Evidence] = {}
    if examples:
        given["--examples"] = Examples(tuple(examples))
    if documents:
        given["--documents"] = Documents(tuple(documents))
    if instruction is not None:
        given["--instruction"] = Instruction(_text(instruction), tuple(map(_pair, pairs or ())))
    if repair:
        given["--repair"] = Repair(tuple(repair))
    if len(given) != 1:
        raise UsageError(
            f"{' and '.join(given) or 'no evidence'} was given",
            wanted="exactly one of --examples, --documents, --instruction, --repair",
        )
    if pairs and instruction is None:
        raise UsageError(f"--example {pairs[0]!r} without --instruction", wanted="--example beside --instruction")
    return next(iter(given.values()))


def _text(instruction: str) -> str:
    """Return the text itself, or what is in the file that `@FILE` names."""
    if not instruction.startswith("@"):
        return instruction
    try:
        return Path(instruction[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--instruction {instruction}: {error}", wanted="@FILE, a text file in UTF-8") from error


def _pair(example: str) -> tuple[str, str]:
    given, arrow, wanted = example.partition("=>")
    if not (arrow and given.strip() and wanted.strip()):
        raise UsageError(f"--example {example!r}", wanted="'IN => OUT', for example 'two lattes => latte: 2'")
    return given.strip(), wanted.strip()
