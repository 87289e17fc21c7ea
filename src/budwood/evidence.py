"""What a user has: one frozen dataclass a kind. The kind decides the default method.

| evidence      | default method | what it is                                                |
| ------------- | -------------- | --------------------------------------------------------- |
| `Examples`    | gift           | files of labelled rows                                    |
| `Instruction` | tagi           | a written instruction, perhaps with a few worked examples |
| `Documents`   | taalm          | text that holds new facts                                 |
| `Repair`      | idp            | plain text, to win back what compression lost             |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

PathLike = str | Path


def _paths(paths: PathLike | tuple[PathLike, ...]) -> tuple[Path, ...]:
    return tuple(Path(p) for p in (paths if isinstance(paths, tuple) else (paths,)))


@dataclass(frozen=True)
class Examples:
    """Labelled rows, in one file or several."""

    paths: PathLike | tuple[PathLike, ...]
    kind: ClassVar[str] = "examples"

    def files(self) -> tuple[Path, ...]:
        return _paths(self.paths)


@dataclass(frozen=True)
class Documents:
    """Files or folders of text with new facts."""

    paths: PathLike | tuple[PathLike, ...]
    kind: ClassVar[str] = "documents"

    def files(self) -> tuple[Path, ...]:
        return _paths(self.paths)


@dataclass(frozen=True)
class Instruction:
    """A task in words, perhaps with pairs of (input, output)."""

    text: str
    examples: tuple[tuple[str, str], ...] = field(default=())
    kind: ClassVar[str] = "instruction"


@dataclass(frozen=True)
class Repair:
    """Plain text like the text on which a compressed model should get better."""

    paths: PathLike | tuple[PathLike, ...]
    kind: ClassVar[str] = "repair"

    def files(self) -> tuple[Path, ...]:
        return _paths(self.paths)


Evidence = Examples | Documents | Instruction | Repair
