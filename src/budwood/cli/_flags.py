"""Flags that several commands share, and how their text becomes values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from budwood.errors import UsageError

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run, or any folder with a PEFT adapter.")]
Base = Annotated[
    str | None, typer.Option("--base", metavar="MODEL", help="The base model, if not the one that the run names.")
]
ForceBase = Annotated[bool, typer.Option("--force", help="Go on though the base is not the one it was trained on.")]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="smollm2, org/name, org/name@revision, a folder, or *.gguf.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=V", help="A setting of the recipe; V is YAML. Repeatable.")
]


def parse_settings(assignments: Sequence[str] | None) -> dict[str, Any]:
    """Return `["a.b=1", ...]` as `{"a.b": 1, ...}`; each value is read as YAML."""
    return dict(_assignment(text) for text in assignments or ())


def _assignment(text: str) -> tuple[str, Any]:
    import yaml

    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--set {text}", wanted="NAME=VALUE, for example --set training.epochs=3")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UsageError(
            f"--set {text}: the value is not YAML", wanted="a number, a word, [a, list] or {a: map}"
        ) from error
