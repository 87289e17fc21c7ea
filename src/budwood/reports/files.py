"""All that a run folder says, read once; what is not there yet is empty, so a failed run has a report too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from budwood import storage
from budwood.data.problems import described
from budwood.errors import StorageError, UsageError
from budwood.training.folder import read_events, read_metrics, read_status

WEIGHTS, RECALL = "documents/weights.json", "documents/recall.json"  # of a run from documents
# Written by who evaluates a run: the summary, and one record a row of the adapted model and of its base.
EVALUATION, ADAPTED, BASE = "evaluation/summary.json", "evaluation/adapted.jsonl", "evaluation/base.jsonl"


@dataclass(frozen=True)
class RunFiles:
    """The files of a run.

    Args:
        path: the run folder.
        status: status.json, with a dead process taken for interrupted.
        recipe: recipe.yaml.
        environment: env.json.
        events: events.jsonl, one mapping a step.
        metrics: metrics.json.
        facts: adapter/budwood.json.
        evaluation: evaluation/summary.json: `{"adapted": {...}, "base": {...}, "paired": {...}}`.
        answers: the rows of the evaluation, each the record of the adapted model with the base's prediction beside it.
        weights: documents/weights.json: each document with the weights of its words.
        recall: documents/recall.json: each probe before and after, and the learn/keep curve.
    """

    path: Path
    status: Mapping[str, Any]
    recipe: Mapping[str, Any]
    environment: Mapping[str, Any]
    events: list[dict[str, Any]]
    metrics: Mapping[str, Any]
    facts: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    answers: list[dict[str, Any]]
    weights: Mapping[str, Any]
    recall: Mapping[str, Any]


def read_run(path: str | Path) -> RunFiles:
    """Read a run folder.

    Raises:
        UsageError: the folder holds no run.
        StorageError: one of its files is not what budwood writes.
    """
    path = Path(path)
    status = read_status(path)
    if not status:
        missing = "does not exist" if not path.exists() else "holds no run"
        raise UsageError(f"{path} {missing}", wanted="a run folder, with status.json in it", action="check the path")
    return RunFiles(
        path=path,
        status=status,
        recipe=_mapping(path / "recipe.yaml"),
        environment=_mapping(path / "env.json"),
        events=read_events(path),
        metrics=read_metrics(path),
        facts=_mapping(path / "adapter" / "budwood.json"),
        evaluation=_mapping(path / EVALUATION),
        answers=_answers(path),
        weights=_mapping(path / WEIGHTS),
        recall=_mapping(path / RECALL),
    )


def _mapping(path: Path) -> Mapping[str, Any]:
    """Return the mapping in a JSON or YAML file (JSON is YAML too); empty if there is no such file."""
    if not path.exists():
        return {}
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8")) if path.suffix == ".yaml" else storage.read_json(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise _damaged(path, str(error).partition("\n")[0]) from error
    if not isinstance(value, dict):
        raise _damaged(path, f"it holds {described(value)}, not keys and values")
    return value


def _answers(run: Path) -> list[dict[str, Any]]:
    adapted, base = _records(run / ADAPTED), _records(run / BASE)
    by_place = {(one.get("file"), one.get("line")): one.get("prediction") for one in base}
    return [one | {"base": by_place.get((one.get("file"), one.get("line")))} for one in adapted]


def _records(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if not all(isinstance(one, dict) for one in found):
        raise _damaged(path, "a line is no object")
    return found


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(f"{path} cannot be read: {why}", action="remove the file, and make the report again")
