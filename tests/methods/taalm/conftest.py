"""A tiny model is sure of nothing: here it knows what it predicts, by however little."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("budwood.evals.recall.LEAD", 0.0)
