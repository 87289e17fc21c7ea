import errno
import math
import os

import pytest
import torch

from budwood.errors import (
    ConfigError,
    DataError,
    NonFiniteError,
    NotSupportedError,
    OutOfMemoryError,
    StorageError,
    TrainingError,
)
from budwood.training.checkpoints import CheckpointStore, trainable_tensors
from budwood.training.folder import RunFolder, read_events, read_status
from budwood.training.train import train
from tests import tiny
from tests.training.rows import collate, lora_model, make_rows, run, settings


class Poison:
    """A collator that makes the loss NaN from the n-th batch on, by a NaN weight."""

    def __init__(self, batch: int) -> None:
        self.left = batch

    def __call__(self, rows):
        self.left -= 1
        batch = collate(rows)
        if self.left <= 0:
            batch["loss_weights"][0, batch["labels"][0] != -100] = math.inf
        return batch


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_non_finite_loss_stops_before_the_step(tmp_path, accumulate):
    rows, path = make_rows(20), tmp_path / "run"
    model, changes = lora_model(), dict(batch_size=4 // accumulate, accumulate=accumulate, save_every=1)
    seen = []
    with pytest.raises(NonFiniteError, match=r"loss of step 4 is nan(.|\n)*step-000003") as caught:
        train(
            model,
            rows,
            [],
            Poison(3 * accumulate + 1),
            settings(**changes),
            _Watched(path, lambda: seen.append(trainable_tensors(model))),
            seed=0,
            progress=False,
        )
    assert caught.value.exit_code == 3
    saved = CheckpointStore(path / "checkpoints").load(3).tensors
    now = trainable_tensors(model)
    assert all(torch.equal(now[n], saved[n]) and torch.equal(now[n], seen[-1][n]) for n in saved)
    assert (read_status(path)["state"], read_status(path)["exit_code"]) == ("failed", 3)
    assert read_status(path)["error"]["type"] == "NonFiniteError"
    assert [event["step"] for event in read_events(path)] == [1, 2, 3]


class _Watched(RunFolder):
    def __init__(self, path, watch):
        super().__init__(path)
        self._watch = watch

    def append_event(self, event):
        super().append_event(event)
        self._watch()


def test_a_gradient_that_overflows_stops_before_the_step(tmp_path):
    model = lora_model()
    before = trainable_tensors(model)
    next(p for p in model.parameters() if p.requires_grad).register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(NonFiniteError, match="gradient norm of step 1"):
        run(tmp_path / "run", model)
    assert all(torch.equal(before[name], tensor) for name, tensor in trainable_tensors(model).items())


def test_an_evaluation_that_is_not_finite_stops_the_run(tmp_path):
    evaluation = make_rows(3, 1)
    evaluation[0].loss_weights[-1] = math.inf
    with pytest.raises(NonFiniteError, match="evaluation loss after step 0"):
        run(tmp_path / "run", lora_model(), evaluation=evaluation)


def test_a_tensor_without_gradient_is_named(tmp_path):
    model = lora_model()
    model.register_parameter("unused", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(TrainingError, match=r"1 trainable tensors got no gradient in the first step: unused"):
        run(tmp_path / "run", model)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        MemoryError(),
    ],
)
def test_a_lack_of_memory_comes_with_advice(tmp_path, error):
    model = lora_model()

    def fail(*_):
        raise error

    model.register_forward_pre_hook(fail)
    with pytest.raises(OutOfMemoryError, match=r"batch_size to 2 and training\.accumulate to 2") as caught:
        run(tmp_path / "run", model)
    assert caught.value.exit_code == 3 and "gradient_checkpointing" in caught.value.action


def test_other_runtime_errors_pass(tmp_path):
    model = lora_model()
    model.register_forward_pre_hook(lambda *_: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="size"):
        run(tmp_path / "run", model)
    assert read_status(tmp_path / "run")["exit_code"] == 1


def test_a_full_disk_is_exit_code_3_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    real, path = os.fsync, tmp_path / "run"
    store = CheckpointStore(path / "checkpoints")

    def full(descriptor):
        if store.latest() == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="the disk is full") as caught:
        run(path, lora_model(), save_every=1)
    assert caught.value.exit_code == 3
    assert [entry.name for entry in (path / "checkpoints").iterdir()] == ["step-000002"]
    monkeypatch.undo()
    assert run(path, lora_model(), save_every=1, resume=True).steps == 5


@pytest.mark.parametrize(
    "error, text, changes",
    [
        (ConfigError, "no learning rate", dict(learning_rate=None)),
        (ConfigError, "no evaluation rows", dict(patience=2)),
        (ConfigError, "wandb is not installed", dict(trackers=["wandb"])),
        (DataError, "none of 3 training rows", dict(rows=[])),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path, monkeypatch, error, text, changes):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    if "rows" in changes:
        changes["rows"] = make_rows(3)
        for row in changes["rows"]:
            row.loss_weights[:] = [0.0] * len(row.loss_weights)
    with pytest.raises(error, match=text):
        run(tmp_path / "run", lora_model(), **changes)
    assert not (tmp_path / "run").exists()


def test_models_that_cannot_be_trained_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no parameter"):
        run(tmp_path / "run", tiny.llama().requires_grad_(False))
    with pytest.raises(NotSupportedError, match="float16"):
        run(tmp_path / "run", lora_model(base=tiny.llama().to(torch.float16)))


def test_a_file_that_grows_over_the_limit_of_the_system(tmp_path):
    """The system's own error, from the files that are really written: state.pt is over the limit, the others not."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(StorageError, match="larger than this system allows"):
            run(tmp_path / "run", lora_model(), save_every=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    status = read_status(tmp_path / "run")
    assert (status["state"], status["exit_code"], status["error"]["type"]) == ("failed", 3, "StorageError")
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    assert run(tmp_path / "run", lora_model(), save_every=2, resume=True).steps == 5
