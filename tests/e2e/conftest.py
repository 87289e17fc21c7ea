"""A tiny base in a folder, and rows that it can learn: what every end-to-end test starts from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tests.tiny as tiny

QUICK = {
    "training.epochs": 2,
    "training.batch_size": 4,
    "training.learning_rate": 1e-2,
    "training.save_every": 2,
    "training.evaluate_every": 3,
    "training.dtype": "float32",  # the same bits and tolerances on every machine; auto may be bf16
    "tuner.rank": 4,
}


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved tiny Llama with its tokenizer."""
    return str(tiny.save(tiny.llama(), tmp_path_factory.mktemp("base")))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Twenty rows: a letter in, the same letter three times out."""
    return write_rows(tmp_path / "rows.jsonl", [{"prompt": c, "completion": c * 3} for c in "abcdefghijklmnopqrst"])


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Leave out the check in a fresh process, which takes seconds, where a test is about something else."""
    from budwood import _published
    from budwood.export.checks import Check, VerifyReport

    fine = VerifyReport((Check("left out of this test", True),))
    monkeypatch.setattr(_published, "verify", lambda *args, **kwargs: fine)
    return lambda: None
