"""`budwood export`: an adapter in a form that others read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from budwood.cli._flags import Base, RunPath
from budwood.cli._render import overview
from budwood.cli._shell import Answer


def export(
    run: RunPath,
    to: Annotated[str, typer.Option("--to", metavar="lora|gguf|merged", help="The form to write.")],
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
        bool, typer.Option("--force", help="Replace OUT; take another base than the trained one.")
    ] = False,
) -> Answer:
    """Write a LoRA for PEFT and vLLM or for llama.cpp, or merge it.

    \b
    Example:
      budwood export runs/first --to lora -o out/first-lora
    """
    from budwood.run import open_run

    found = open_run(run, base=base, force=force).export(to, out, dtype=dtype, force=force).to_dict()
    return Answer(found, overview(found))
