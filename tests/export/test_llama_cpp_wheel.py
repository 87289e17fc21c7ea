"""The script that brings llama.cpp: it builds once, installs from its cache, and fails without harm."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "llama_cpp_wheel.py"


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script as a module, with an empty cache and nothing installed."""
    spec = importlib.util.spec_from_file_location("llama_cpp_wheel", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "installed", lambda: "")
    return module


@pytest.fixture
def calls(script, monkeypatch):
    """The calls of pip; a `wheel` leaves a wheel, as pip does."""
    made = []

    def pip(*arguments, environment=None):
        made.append(arguments)
        if arguments[0] == "wheel":
            assert "GGML_NATIVE=OFF" in environment["CMAKE_ARGS"]
            include = environment["CMAKE_ARGS"].rpartition("INCLUDE=")[2].strip("'")
            assert Path(include).read_text() == script.ONLY_THE_LIBRARY
            version = arguments[-1].partition("==")[2]
            Path(include).with_name(f"llama_cpp_python-{version}-py3-none-any.whl").write_text("")

    monkeypatch.setattr(script, "pip", pip)
    return made


def test_it_builds_once_and_installs_from_the_cache_from_then_on(script, calls, tmp_path):
    assert script.main() == 0 and [call[0] for call in calls] == ["wheel", "install"]
    assert script.main() == 0 and [call[0] for call in calls] == ["wheel", "install", "install"]
    assert calls[1] == calls[2] and calls[2][-1].startswith(str(tmp_path / "budwood" / "wheels"))
    assert [path.suffix for path in script.place().iterdir()] == [".whl"]


def test_nothing_is_done_when_it_is_installed(script, calls, monkeypatch):
    version = next(
        line.partition("==")[2]
        for line in script.CONSTRAINTS.read_text().splitlines()
        if line.startswith("llama_cpp_python")
    )
    monkeypatch.setattr(script, "installed", lambda: version)
    assert script.main() == 0 and calls == []


def test_a_build_that_fails_is_told_and_leaves_nothing(script, monkeypatch, capsys):
    def fail(*arguments, environment=None):
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(script, "pip", fail)
    assert script.main() == 1 and "are skipped" in capsys.readouterr().err
    assert list(script.place().iterdir()) == []
