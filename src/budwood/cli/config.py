"""`budwood config`: the schema of a recipe, the shipped presets, and what a recipe comes to."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from budwood.cli._render import Table
from budwood.cli._shell import Answer


def schema() -> Answer:
    """Print the JSON schema of a recipe, for editors and checkers.

    \b
    Example:
      budwood config schema > recipe.schema.json
    """
    from budwood import recipe

    found = recipe.schema()
    return Answer(found, [json.dumps(found, indent=2)])


def presets() -> Answer:
    """List the shipped presets, for --recipe and `extends:`.

    \b
    Example:
      budwood config presets
    """
    from budwood import recipe

    found = recipe.presets()
    return Answer({"presets": found}, [Table(("", ""), list(found.items()))], brief="\n".join(found))


def show(
    name: Annotated[str, typer.Argument(metavar="PRESET|FILE", help="A preset, or a recipe in YAML.")],
) -> Answer:
    """Print a preset or a recipe with all that follows from it.

    \b
    Example:
      budwood config show paper_qv
    """
    import yaml

    from budwood import recipe

    found = recipe.outline(name)
    text = yaml.safe_dump(found["recipe"], sort_keys=False, allow_unicode=True)
    missing = f"# left to the flags: {', '.join(found['missing'])}\n" if found["missing"] else ""
    return Answer(found, [f"{missing}{text}".rstrip("\n")])
