"""`budwood generate`: one answer of an adapted model."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from budwood.cli._flags import Base, ForceBase, RunPath
from budwood.cli._shell import Answer

logger = logging.getLogger(__name__)


def generate(
    run: RunPath,
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="What to answer.")],
    base: Base = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message.")] = None,
    max_new_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="The longest answer.")] = 128,
    temperature: Annotated[float, typer.Option(metavar="X", min=0.0, help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the draws, at a temperature above 0.")] = 0,
    force: ForceBase = False,
) -> Answer:
    """Answer one prompt with the adapted model.

    \b
    Example:
      budwood generate runs/first --prompt "Hi, two large lattes for Anna, please."
    """
    from budwood import _inspect

    found = _inspect.generate(
        run,
        prompt,
        base=base,
        system=system,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        force=force,
    )
    logger.info("%d tokens in %.1f s", found["tokens"], found["seconds"])
    return Answer(found, [found["text"]])
