"""What the Trainer and its trackers are told about a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers.integrations import TensorBoardCallback

from budwood.training.folder import RunFolder
from budwood.training.preparation import name_logs, training_arguments
from tests.training.rows import lora_model, settings


def test_trackers_know_a_run_by_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("runs/first", tmp_path / "runs" / "first"):
        made = training_arguments(lora_model(), settings(), RunFolder(path), 0, evaluates=False)
        assert (made.run_name, made.project, made.report_to) == ("first", "first", [])


@pytest.mark.parametrize(("chosen", "place"), [(None, "run"), ("elsewhere", "elsewhere")])
def test_the_log_of_tensorboard_lies_in_the_run_unless_the_user_chose(tmp_path, chosen, place):
    callback = object.__new__(TensorBoardCallback)  # its constructor wants TensorBoard
    callback.logging_dir = None if chosen is None else str(tmp_path / chosen)
    trainer = SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[object(), callback]))
    name_logs(trainer, RunFolder(tmp_path / "run"))
    assert callback.logging_dir == str(tmp_path / place)
