"""The command line over a stand-in library."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import budwood
from budwood.cli._app import app
from tests.cli import stand_ins as stand_in

# Every command with the fewest words it takes.
COMMANDS = {
    "demo": ["demo"],
    "doctor": ["doctor"],
    "methods": ["methods"],
    "data check": ["data", "check", "rows.jsonl"],
    "data show": ["data", "show", "rows.jsonl"],
    "adapt": ["adapt", "smollm2", "--examples", "rows.jsonl"],
    "adapt --dry-run": ["adapt", "smollm2", "--examples", "rows.jsonl", "--dry-run"],
    "plan": ["plan", "smollm2", "--examples", "rows.jsonl"],
    "chat": ["chat", "runs/a"],
    "compress": ["compress", "smollm2", "--bits", "4", "-o", "models/x"],
    "prepare": ["prepare", "smollm2", "taalm", "--corpus", "facts.jsonl", "-o", "priors/[a]"],
    "prepare --dry-run": ["prepare", "smollm2", "taalm", "--corpus", "f.jsonl", "-o", "priors/[a]", "--dry-run"],
    "compress --dry-run": ["compress", "smollm2", "--sparsity", "0.5", "-o", "models/x", "--dry-run"],
    "report": ["report", "runs/a"],
    "eval": ["eval", "runs/a", "--rows", "test.jsonl"],
    "generate": ["generate", "runs/a", "--prompt", "Hi"],
    "verify": ["verify", "runs/a"],
    "export": ["export", "runs/a", "--to", "lora", "-o", "out"],
    "config schema": ["config", "schema"],
    "config presets": ["config", "presets"],
    "config show": ["config", "show", "paper"],
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """The stand-in library, in place for one test, with an empty working directory."""
    for name, module in stand_in.modules().items():
        monkeypatch.setitem(sys.modules, f"budwood.{name}", module)
        monkeypatch.setattr(budwood, name, module, raising=False)
    monkeypatch.chdir(tmp_path)
    for record in (stand_in.CALLS, stand_in.ERROR, stand_in.VERIFIED):
        record.clear()
    yield stand_in
    for record in (stand_in.CALLS, stand_in.ERROR, stand_in.VERIFIED):
        record.clear()


@pytest.fixture
def budwood_cli(library) -> Callable[..., Result]:
    """Run a command line in this process: `budwood_cli("adapt", "smollm2", ...)`; one line is on standard input."""
    return lambda *words: CliRunner().invoke(app, list(words), input="Hi\n", catch_exceptions=False)


def only_object(output: str) -> dict[str, Any]:
    """Return the one JSON object that `output` is; NaN and anything beside the object are refused."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    value = json.loads(output, parse_constant=refuse)
    assert isinstance(value, dict)
    return value
