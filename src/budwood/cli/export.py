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
    to: Annotated[str, typer.Option("--to", metavar="lora|gguf|merged|prompts", help="The form to write.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")],
    base: Base = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace DIR; take another base than the trained one.")
    ] = False,
) -> Answer:
    """Write the adapter as LoRA, GGUF LoRA, merged model or prompts.

    \b
    Example:
      budwood export runs/first --to lora -o out/first-lora
    """
    from budwood.run import open_run

    found = open_run(run, base=base, force=force).export(to, out, force=force).to_dict()
    return Answer(found, overview(found))
