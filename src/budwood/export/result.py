"""What every exporter returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budwood.export.checks import Check


@dataclass(frozen=True)
class ExportResult:
    """What was written.

    Args:
        folder: where it lies: a folder, or for `gguf` a file.
        kind: `lora`, `gguf` or `merged`.
        bytes: size of the weights.
        rank: the one rank of all modules; None for a merged model.
        modules: how many modules are adapted.
        serve_lines: consumer to the lines that use it.
        notes: what the user must know, one sentence each.
        checks: what was measured before it appeared, where the exporter keeps that.
    """

    folder: Path
    kind: str
    bytes: int
    rank: int | None
    modules: int
    serve_lines: Mapping[str, str]
    notes: tuple[str, ...]
    checks: tuple[Check, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        return {
            **vars(self),
            "folder": str(self.folder),
            "serve_lines": dict(self.serve_lines),
            "notes": [*self.notes],
            "checks": [check.to_dict() for check in self.checks],
        }
