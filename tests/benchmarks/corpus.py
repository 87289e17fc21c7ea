"""A made-up corpus in the shape of the instruction tasks, with the names of the small subset."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.instructions.tasks import PILOT

ROWS = 44  # 4 to train on


def rows(task: str, count: int, number: int) -> list[dict]:
    return [
        {
            "task_id": task,
            "instance_id": f"{task}#{i:03}",
            "definition": f"Rule {number}: say how the day is.",
            "input": f"day {i}",
            "outputs": ["fine", "good", "fine"] if i % 2 else ["fine"],
        }
        for i in range(count)
    ]


def write(folder: Path) -> Path:
    """Write `train.jsonl` and `dev.jsonl`; the rows are in reverse, so that order must come from their ids."""
    parts = {
        "train.jsonl": [row for i, task in enumerate(PILOT) for row in rows(task, ROWS, i)],
        "dev.jsonl": [row for i, task in enumerate(("new_a", "new_b")) for row in rows(task, 12, 20 + i)],
    }
    for name, lines in parts.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in reversed(lines)))
    return folder
