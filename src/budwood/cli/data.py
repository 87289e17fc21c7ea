"""`budwood data check` and `budwood data show`: what the training would see of your files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budwood.cli._flags import Settings, parse_settings
from budwood.cli._render import highlighted, overview
from budwood.cli._shell import Answer
from budwood.errors import DataError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

DataModel = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="The base whose tokenizer and chat template are used.")
]


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of rows.")],
    model: DataModel = None,
    settings: Settings = None,
) -> Answer:
    """Count rows and tokens, and list what is wrong with them.

    \b
    Example:
      budwood data check rows.jsonl --model smollm2
    """
    from budwood import _inspect

    found = _inspect.check_data(files, model=model, overrides=parse_settings(settings))
    body: list[RenderableType] = [*overview(found)]
    if model is None:
        body.append("\ngive --model to count tokens and to check the rows as the model will see them")
    brief = f"{found['rows']} rows, {found['problem_count']} problems"
    return Answer(found, body, DataError.exit_code if found["problem_count"] else 0, brief)


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of rows.")],
    model: DataModel = None,
    rows: Annotated[str, typer.Option(metavar="FROM:TO", help="Which rows, counted from 0; TO is left out.")] = "0:3",
) -> Answer:
    """Show text and token ids; what is trained on stands in ⟦ ⟧.

    \b
    Example:
      budwood data show rows.jsonl --model smollm2 --rows 0:3
    """
    from budwood import _inspect

    found = _inspect.show_data(file, model=model, rows=_slice(rows))
    return Answer({"rows": found}, [part for row in found for part in _row(row)])


def _slice(text: str) -> slice:
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text)
    if not match or not text:
        raise UsageError(f"--rows {text}", wanted="FROM:TO, for example 0:3, or one number")
    first, colon, last = match.groups()
    start = int(first or 0)
    return slice(start, int(last) if last else None if colon else start + 1)


def _row(row: dict[str, Any]) -> list[RenderableType]:
    tokens = [(token["text"], str(token["id"]), bool(token["trained"])) for token in row["tokens"]]
    trained = sum(mark for _, _, mark in tokens)
    return [
        f"{row['origin']}: {len(tokens)} tokens, {trained} trained on",
        highlighted((text, mark) for text, _, mark in tokens),
        highlighted((f" {number} ", mark) for _, number, mark in tokens),
        "",
    ]
