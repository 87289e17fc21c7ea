"""`budwood config schema`: the JSON schema of a recipe."""

from __future__ import annotations

import json

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
