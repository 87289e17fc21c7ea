"""`events.jsonl`: one line a step, appended as the run goes. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from budwood import storage
from budwood.errors import StorageError

FILE = "events.jsonl"


def append_event(run: Path, event: Mapping[str, Any]) -> None:
    """Append one event. A number that JSON cannot hold (NaN, infinity) becomes null."""
    line = json.dumps({key: _finite(value) for key, value in event.items()}, ensure_ascii=False) + "\n"
    with storage.guarded(run / FILE), (run / FILE).open("ab") as file:
        file.write(line.encode())


def read_events(run: str | Path) -> list[dict[str, Any]]:
    """Return the events of a run, oldest first; none if it has no such file yet.

    A last line that a killed process left unfinished is ignored.

    Raises:
        StorageError: another line is no JSON object.
    """
    path = Path(run) / FILE
    if not path.exists():
        return []
    *lines, torn = path.read_text(encoding="utf-8", errors="replace").split("\n")
    del torn  # what follows the last line end: nothing, or a part of a line
    return [_parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def truncate_events(run: Path, step: int | None) -> None:
    """Keep the events up to and including `step`, none for None: those that a run going on from there will not repeat.

    Raises:
        StorageError: as `read_events`, or the disk fails.
    """
    kept = [event for event in read_events(run) if step is not None and event["step"] <= step]
    if (run / FILE).exists():
        storage.write_text(run / FILE, "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in kept))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StorageError(f"{where} is no JSON object", action="remove the line, or the file")
    return value
