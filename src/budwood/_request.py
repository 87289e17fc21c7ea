"""What a user asks of `adapt` and `plan`, as one value: the same for a recipe, flags and Python's arguments.

Imports no torch, so that a mistake in the request is told at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from budwood import recipe as recipes
from budwood.data.files import require_readable
from budwood.errors import ConfigError, UsageError
from budwood.evidence import Evidence, Instruction
from budwood.recipe import Recipe
from budwood.tuning.registry import find_method

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
        return [self._of_earlier_run(), named, dict(self.overrides or {}), asked]

    def _of_earlier_run(self) -> dict[str, Any]:
        """Return what follows from the run that this one goes on from: its base, its tuner, the layers it adapts."""
        run = (self.overrides or {}).get("base_run")
        path = Path(str(run)) / RECIPE
        if run is None or not path.is_file():  # that it is no run is told when it is opened
            return {}
        earlier = recipes.load(path).model_dump(mode="json")
        layers = {"top_layers": earlier["learner"]["top_layers"]} if "top_layers" in (earlier["learner"] or {}) else {}
        return {"model": earlier["model"], "tuner": earlier["tuner"], **({"learner": layers} if layers else {})}

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
        for part in ("model", "evidence"):
            if values.get(part) is None:
                raise self._lacks(part, values)
        made = recipes.resolve(None, values)
        beside = made.data.evaluation_file
        for path in (*made.evidence.paths, *([beside] if beside else [])):
            require_readable(path)
        return made

    def _lacks(self, part: str, values: Mapping[str, Any]) -> UsageError:
        """Say what is missing, and show a command with it: for the evidence that the recipe's method takes."""
        kind = find_method(str(values["method"])).evidence if "method" in values else None
        wanted = {
            "model": "MODEL, or a recipe that names one",
            "evidence": f"--{kind} {_FILES[kind]}"
            if kind
            else f"exactly one of {', '.join(f'--{k}' for k in _FILES)}",
        }
        says = (
            f"the recipe {self.recipe} names no {part}, and none was given" if self.recipe else f"no {part} was given"
        )
        flags = ["--recipe", str(self.recipe)] if self.recipe else []
        words = [
            "budwood",
            "adapt",
            self.model or "smollm2",
            *flags,
            f"--{kind or 'examples'}",
            _FILES[kind or "examples"],
        ]
        return UsageError(says, wanted=wanted[part], action=f"for example: {shlex.join(words)}")

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


_FILES = {"examples": "rows.jsonl", "documents": "notes/", "instruction": "TEXT", "repair": "text.txt"}  # in examples


def _settings(evidence: Evidence) -> dict[str, Any]:
    if isinstance(evidence, Instruction):
        return {"kind": evidence.kind, "text": evidence.text, "pairs": evidence.examples}
    return {"kind": evidence.kind, "paths": evidence.files()}


def _as_path(value: object) -> object:
    return str(value) if isinstance(value, str | Path) else "rows.jsonl"
