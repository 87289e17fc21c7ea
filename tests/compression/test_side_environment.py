"""The script that makes llm-compressor's environment: once, with this torch, and never half."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
from pathlib import Path

import pytest

from budwood.compression import side

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "side_environment.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("side_environment", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.venv, "create", lambda place, with_pip: place.mkdir(parents=True))
    return module


def test_it_is_made_once_with_the_torch_of_this_environment(script, monkeypatch):
    calls = []
    monkeypatch.setattr(script.subprocess, "run", lambda words, check: calls.append(words))
    assert script.main(["--extra-index-url", "file:///wheels"]) == 0
    assert script.main([]) == 0
    [words] = calls
    assert words[0] == str(side.environment() / "bin" / "python")
    torch = f"torch=={importlib.metadata.version('torch')}"
    assert words[-4:] == ["--extra-index-url", "file:///wheels", torch, side.REQUIREMENT]
    assert side.side_python() == side.environment() / "bin" / "python"


def test_a_failure_leaves_no_environment_that_looks_whole(script, monkeypatch, capsys):
    def fail(words, check):
        raise subprocess.CalledProcessError(1, words)

    monkeypatch.setattr(script.subprocess, "run", fail)
    assert script.main([]) == 1
    assert "could not be made" in capsys.readouterr().err
    assert not (side.environment() / "ready").exists()
