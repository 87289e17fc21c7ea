"""What a user asks of `adapt` and `plan`, as one value: the same for a recipe, flags and Python's arguments.

Imports no torch, so that a mistake in the request is told at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from budwood import recipe as recipes
from budwood.data.files import require_readable
from budwood.errors import ConfigError, UsageError
from budwood.evidence import Evidence, Instruction
from budwood.recipe import Recipe

RECIPE = "recipe.yaml"  # in the folder of a run


@dataclass(frozen=True)
class Request:
    """The arguments of `adapt` that decide what is computed; its docstring says what each means.

    Raises:
        UsageError: the evidence is something else than `Examples`, `Documents`, `Instruction` or `Repair`.
    """

    model: str | None = None
    evidence: Evidence | None = None
    method: str | None = None
    tuner: str | None = None
    seed: int | None = None
    recipe: str | Path | None = None
    overrides: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if self.evidence is not None and not isinstance(self.evidence, get_args(Evidence)):
            raise UsageError(
                f"the evidence is {self.evidence!r}",
                wanted="what kind of evidence it is",
                action=f"for labelled rows: bw.Examples({_as_path(self.evidence)!r})",
            )

    def values(self) -> dict[str, Any]:
        """Return what was asked for, layer over layer: the recipe, the overrides, the arguments."""
        return recipes.composed(self.recipe, *self.layers())

    def layers(self) -> list[dict[str, Any]]:
        """Return what lies over the recipe, the strongest last."""
        # The tuner's name comes first: another one drops the settings of the recipe's, not those given with it.
        named = {"tuner": {"name": self.tuner}} if self.tuner else {}
        evidence = None if self.evidence is None else _settings(self.evidence)
        given = {"model": self.model, "evidence": evidence, "method": self.method, "seed": self.seed}
        asked = {name: value for name, value in given.items() if value is not None}
        return [named, dict(self.overrides or {}), asked]

    def names_rows(self) -> bool:
        """Whether arguments or recipe say which evidence, and not only of which kind it is."""
        evidence = self.values().get("evidence")
        return isinstance(evidence, Mapping) and bool(evidence.get("paths") or evidence.get("text"))

    def resolve(self) -> Recipe:
        """Return the whole recipe.

        Raises:
            UsageError: model or evidence are missing.
            ConfigError: a setting is wrong.
            DataError: a file of evidence does not exist.
        """
        values = self.values()
        if values.get("model") is None:
            raise UsageError("no model was given", wanted="MODEL, or a recipe that names one", action=_EXAMPLE)
        if values.get("evidence") is None:
            raise UsageError(
                "no evidence was given",
                wanted="exactly one of --examples, --documents, --instruction, --repair, or a recipe that names some",
                action=_EXAMPLE,
            )
        made = recipes.resolve(None, values)
        beside = made.data.evaluation_file
        for path in (*made.evidence.paths, *([beside] if beside else [])):
            require_readable(path)
        return made

    def resumed(self, run: Path) -> Recipe:
        """Return the recipe of the run to go on with.

        Raises:
            ConfigError: an argument asks for something else than the run's recipe says.
        """
        path = run / RECIPE
        if not path.exists():  # stopped in its first moment
            return self.resolve()
        old = recipes.load(path)
        layers = [recipes.composed(self.recipe)] if self.recipe else []
        new = recipes.resolve(path, *layers, *self.layers())
        if changed := recipes.differences(old, new):
            raise ConfigError(
                f"the run to resume has another recipe: {'; '.join(changed)}",
                wanted=f"what {path} says",
                action=f"leave these arguments out, or start a new run with another -o than {run}",
            )
        return old


_EXAMPLE = "for example: budwood adapt smollm2 --examples rows.jsonl"


def _settings(evidence: Evidence) -> dict[str, Any]:
    if isinstance(evidence, Instruction):
        return {"kind": evidence.kind, "text": evidence.text, "pairs": evidence.examples}
    return {"kind": evidence.kind, "paths": evidence.files()}


def _as_path(value: object) -> object:
    return str(value) if isinstance(value, str | Path) else "rows.jsonl"
