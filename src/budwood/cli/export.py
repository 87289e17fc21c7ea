"""`budwood export`: an adapter in a form that others read."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budwood.cli._flags import Base, RunPath
from budwood.cli._shell import Answer
from budwood.cli.verify import checks

if TYPE_CHECKING:
    from rich.console import RenderableType


def export(
    run: RunPath,
    to: Annotated[str, typer.Option("--to", metavar="lora|gguf|merged|prompts", help="The form to write.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="OUT", help="The folder to write; for gguf a file, x.gguf.")
    ],
    base: Base = None,
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype",
            metavar="auto|float32|bfloat16|float16",
            help="Precision of the weights; auto is float32, and for merged that of the base.",
        ),
    ] = "auto",
    force: Annotated[
        bool, typer.Option("--force", help="Replace OUT; take another base; merge beyond the limit.")
    ] = False,
) -> Answer:
    """Write a LoRA (PEFT, vLLM, llama.cpp), a merged model or prompts.

    \b
    Example:
      budwood export runs/first --to lora -o out/first-lora
    """
    from budwood.run import open_run

    found = open_run(run, base=base, force=force).export(to, out, dtype=dtype, force=force).to_dict()
    return Answer(found, _body(found), brief=str(found["folder"]))


def _body(found: dict[str, Any]) -> list[RenderableType]:
    rank = f"rank {found['rank']}, " if found["rank"] is not None else ""
    head = f"{found['folder']}: {found['kind']}, {rank}{found['modules']} adapted modules, {found['bytes']:,} bytes\n"
    lines = [f"\n{consumer}:\n{indent(text, '  ')}" for consumer, text in found["serve_lines"].items()]
    return [head, checks(found), *(f"\n{note}" for note in found["notes"]), *lines]
