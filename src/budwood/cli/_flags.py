"""Flags that several commands share, and how their text becomes values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budwood.errors import DataError, UsageError

if TYPE_CHECKING:
    from budwood.evidence import Evidence

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run, or any folder with a PEFT adapter.")]
Base = Annotated[
    str | None, typer.Option("--base", metavar="MODEL", help="The base model, if not the one that the run names.")
]
ForceBase = Annotated[bool, typer.Option("--force", help="Go on though the base is not the one it was trained on.")]
Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        show_default=False,
        help="smollm2, org/name, org/name@revision, a folder, or *.gguf. A recipe may name it instead.",
    ),
]
ExampleRows = Annotated[
    list[Path] | None, typer.Option("--examples", metavar="FILE", help="Labelled rows. Repeatable.")
]
Texts = Annotated[
    list[Path] | None, typer.Option("--documents", metavar="FILE|DIR", help="Text with new facts. Repeatable.")
]
Task = Annotated[str | None, typer.Option("--instruction", metavar="TEXT|@FILE", help="The task in words.")]
Plain = Annotated[
    list[Path] | None,
    typer.Option("--repair", metavar="FILE", help="Plain text for a compressed model. Repeatable."),
]
Pairs = Annotated[
    list[str] | None, typer.Option("--example", metavar="'IN => OUT'", help="Goes with --instruction. Repeatable.")
]
MethodName = Annotated[
    str | None, typer.Option("--method", metavar="M", help="See `budwood methods`; without it, the evidence decides.")
]
TunerName = Annotated[str | None, typer.Option("--tuner", metavar="T", help="Where the new parameters live.")]
RecipeFile = Annotated[
    Path | None,
    typer.Option("--recipe", metavar="FILE|PRESET", help="A recipe in YAML, or a preset; flags override it."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=V", help="A setting of the recipe; V is YAML. Repeatable.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="The same seed gives the same adapter; default 0.")
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


def parse_evidence(
    examples: list[Path] | None,
    documents: list[Path] | None,
    instruction: str | None,
    repair: list[Path] | None,
    pairs: list[str] | None,
) -> Evidence | None:
    """Return the evidence that the flags name, or None.

    Raises:
        UsageError: flags that exclude one another, or a pair that is none.
        DataError: the file of an instruction cannot be read.
    """
    from budwood.evidence import Documents, Examples, Instruction, Repair

    given: dict[str, Evidence] = {}
    if examples:
        given["--examples"] = Examples(tuple(examples))
    if documents:
        given["--documents"] = Documents(tuple(documents))
    if instruction is not None:
        given["--instruction"] = Instruction(_text(instruction), tuple(map(_pair, pairs or ())))
    if repair:
        given["--repair"] = Repair(tuple(repair))
    if len(given) > 1:
        raise UsageError(
            f"{' and '.join(given)} were given",
            wanted="exactly one of --examples, --documents, --instruction, --repair",
        )
    if pairs and instruction is None:
        raise UsageError(f"--example {pairs[0]!r} without --instruction", wanted="--example beside --instruction")
    return next(iter(given.values()), None)


def _text(instruction: str) -> str:
    """Return the text itself, or what is in the file that `@FILE` names."""
    if not instruction.startswith("@"):
        return instruction
    try:
        return Path(instruction[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--instruction {instruction}: {error}", wanted="@FILE, a text file in UTF-8") from error


def _pair(example: str) -> tuple[str, str]:
    given, arrow, wanted = example.partition("=>")
    if not (arrow and given.strip() and wanted.strip()):
        raise UsageError(f"--example {example!r}", wanted="'IN => OUT', for example 'two lattes => latte: 2'")
    return given.strip(), wanted.strip()
