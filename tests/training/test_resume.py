"""A run that is stopped and resumed ends with the same bits as one that is not."""

import os
import signal

import pytest
import torch
from peft import PromptEncoderConfig, PromptTuningConfig, VeraConfig, get_peft_model

from budwood.errors import ConfigError, InterruptedRunError, UsageError
from budwood.training.checkpoints import CheckpointStore, trainable_tensors
from budwood.training.folder import RunFolder, read_events, read_status
from budwood.training.train import train
from tests import tiny
from tests.training.rows import collate, lora_model, make_rows, settings

TIMES = {"tokens_per_s"}


class Stopping(RunFolder):
    """Sends a signal to this process when the event of a step is written."""

    def __init__(self, path, step, number=signal.SIGTERM):
        super().__init__(path)
        self.step, self.number = step, number

    def append_event(self, event):
        super().append_event(event)
        if event["step"] == self.step:
            os.kill(os.getpid(), self.number)


def go(folder, make, *, resume=False, rows=None, **changes):
    changes = {"epochs": 3, "batch_size": 2, "accumulate": 2, "evaluate_every": 3, "save_every": 4} | changes
    model = make()
    rows = rows or make_rows(18)
    result = train(
        model,
        rows,
        make_rows(5, 1),
        collate,
        settings(**changes),
        folder,
        seed=0,
        probes={"draw": lambda model: {"n": torch.rand(()).item()}},
        progress=False,
        resume=resume,
    )
    return model, result


def figures(path):
    return [{key: value for key, value in event.items() if key not in TIMES} for event in read_events(path)]


def require_equal(model, result, path, wanted_model, wanted_result, wanted_path):
    wanted = trainable_tensors(wanted_model)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in trainable_tensors(model).items())
    assert figures(path) == figures(wanted_path)
    timed = {"wall_s", "tokens_per_s", "peak_memory_mib"}
    assert {k: v for k, v in result.to_dict().items() if k not in timed} == {
        k: v for k, v in wanted_result.to_dict().items() if k not in timed
    }
    last = CheckpointStore(path / "checkpoints"), CheckpointStore(wanted_path / "checkpoints")
    ours, theirs = (store.load(store.latest()) for store in last)
    assert all(torch.equal(ours.tensors[name], tensor) for name, tensor in theirs.tensors.items())
    assert str(ours.optimizer) == str(theirs.optimizer)


def soft(config):
    torch.manual_seed(0)
    return get_peft_model(tiny.llama(), config(task_type="CAUSAL_LM", num_virtual_tokens=3))


def vera():
    torch.manual_seed(0)
    return get_peft_model(tiny.llama(), VeraConfig(r=4, target_modules=["q_proj", "o_proj"], vera_dropout=0.2))


# 18 rows in steps of 4: 5 steps an epoch, the last with 2 rows; 15 steps in all.
@pytest.mark.parametrize("step", [0, 3, 5, 7, 14, 15])
def test_stopped_at_any_step(tmp_path, step):
    def make():
        return lora_model(dropout=0.3)

    wanted = go(RunFolder(tmp_path / "straight"), make)
    path = tmp_path / "stopped"
    with pytest.raises(InterruptedRunError, match="SIGTERM") as caught:
        go(Stopping(path, step), make)
    assert caught.value.exit_code == read_status(path)["exit_code"] == 130
    assert read_status(path)["state"] == "interrupted"
    found = go(RunFolder(path), make, resume=True)
    require_equal(*found, path, *wanted, tmp_path / "straight")
    assert read_status(path)["state"] == "done"


@pytest.mark.parametrize(
    "make",
    [lambda: soft(PromptTuningConfig), lambda: soft(PromptEncoderConfig), vera],
    ids=["prompt tuning", "p-tuning", "vera"],
)
def test_every_kind_of_adapter(tmp_path, make):
    wanted = go(RunFolder(tmp_path / "straight"), make)
    path = tmp_path / "stopped"
    with pytest.raises(InterruptedRunError):
        go(Stopping(path, 7), make)
    require_equal(*go(RunFolder(path), make, resume=True), path, *wanted, tmp_path / "straight")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # workers are forks
def test_stopped_many_times_with_patience_and_workers(tmp_path):
    changes = dict(learning_rate=0.05, patience=2, evaluate_every=1, epochs=10, rows=make_rows(8), workers=1)
    wanted = go(RunFolder(tmp_path / "straight"), lora_model, **changes)
    assert wanted[1].stopped_early and wanted[1].best_step > 1
    path = tmp_path / "stopped"
    for step in range(1, wanted[1].steps):
        with pytest.raises(InterruptedRunError):
            go(Stopping(path, step), lora_model, resume=step > 1, **changes)
    require_equal(*go(RunFolder(path), lora_model, resume=True, **changes), path, *wanted, tmp_path / "straight")


def test_a_finished_run_is_only_loaded(tmp_path):
    path = tmp_path / "run"
    wanted = go(RunFolder(path), lora_model)
    before = (path / "events.jsonl").read_bytes()
    model, result = go(RunFolder(path), lora_model, resume=True)
    require_equal(model, result, path, *wanted, path)
    assert (path / "events.jsonl").read_bytes() == before


def test_a_run_without_a_checkpoint_begins_anew(tmp_path):
    path = tmp_path / "run"

    def fail(rows):
        raise RuntimeError("no batch")

    with pytest.raises(RuntimeError):
        train(lora_model(), make_rows(18), [], fail, settings(), RunFolder(path), seed=0, progress=False)
    assert go(RunFolder(path), lora_model, resume=True)[1].steps == 15
    assert [event["step"] for event in read_events(path)] == list(range(16))


def test_another_plan_is_refused(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(InterruptedRunError):
        go(Stopping(path, 4), lora_model)
    with pytest.raises(ConfigError, match=r"epochs was 3\.0, is 4\.0"):
        go(RunFolder(path), lora_model, resume=True, epochs=4)
    assert go(RunFolder(path), lora_model, resume=True)[1].steps == 15


def test_an_unfinished_run_is_not_overwritten(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(InterruptedRunError):
        go(Stopping(path, 4), lora_model)
    with pytest.raises(UsageError, match="--resume"):
        go(RunFolder(path), lora_model)


def test_a_second_signal_stops_at_once_and_leaves_the_last_checkpoint(tmp_path):
    path = tmp_path / "run"

    class Twice(Stopping):
        def append_event(self, event):
            super().append_event(event)
            if event["step"] == self.step:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(InterruptedRunError, match="in the middle of a step"):
        go(Twice(path, 7), lora_model)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert read_status(path)["exit_code"] == 130
    assert CheckpointStore(path / "checkpoints").latest() == 6  # the evaluation of step 6 was the best so far
    wanted = go(RunFolder(tmp_path / "straight"), lora_model)
    require_equal(*go(RunFolder(path), lora_model, resume=True), path, *wanted, tmp_path / "straight")
