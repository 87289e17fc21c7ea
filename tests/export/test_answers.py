"""What the comparison of two loads finds, with the fresh process left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from budwood.export import answers
from budwood.export.answers import verify_answers
from budwood.export.checks import Check
from budwood.export.verify import NativeBase

TRAINED = {
    "base": torch.zeros(1, 2, 3),
    "prompt a": torch.ones(1, 2, 3),
    "scores": torch.ones(1, 2),
}


def verify(monkeypatch: pytest.MonkeyPatch, found: object):
    asked: list[dict] = []

    def ask(command, request, inputs, timeout_s):
        asked.append(request)
        return found

    monkeypatch.setattr(answers, "ask_tensors", ask)
    ids = torch.tensor([[1, 2]])
    report = verify_answers(TRAINED, "idp", Path("bank"), NativeBase("org/b"), ids, device=torch.device("cpu"))
    assert asked[0]["method"] == "idp" and asked[0]["reference"] == "org/b"
    return report


def failed(report) -> list[str]:
    return [check.name for check in report.checks if not check.ok]


def test_equal_answers_pass(monkeypatch):
    report = verify(monkeypatch, (dict(TRAINED), {}))
    assert report.ok and "prompt a: differs from the base" in [check.name for check in report.checks]


def test_one_other_bit_fails(monkeypatch):
    other = TRAINED | {"prompt a": TRAINED["prompt a"].clone()}
    other["prompt a"][0, 0, 0] += 1e-6
    assert failed(verify(monkeypatch, (other, {}))) == ["prompt a: the same bits as the trained model"]


def test_a_missing_answer_fails(monkeypatch):
    fewer = {name: one for name, one in TRAINED.items() if name != "scores"}
    assert failed(verify(monkeypatch, (fewer, {}))) == ["it gives the same answers"]


def test_a_prompt_that_changes_nothing_fails(monkeypatch):
    same = TRAINED | {"prompt a": TRAINED["base"]}
    assert "prompt a: differs from the base" in failed(verify(monkeypatch, (same, {})))


def test_a_process_that_ends_badly_is_the_one_failed_check(monkeypatch):
    report = verify(monkeypatch, Check("a fresh process loads it", False, note="it ended with 1"))
    assert not report.ok and len(report.checks) == 1
