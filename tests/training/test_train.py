import errno
import math
import os

import pytest
import torch
from peft import PromptEncoderConfig, PromptTuningConfig, get_peft_model

from budwood.errors import (
    ConfigError,
    DataError,
    NonFiniteError,
    NotSupportedError,
    OutOfMemoryError,
    StorageError,
    TrainingError,
)
from budwood.training.batches import StepSampler
from budwood.training.checkpoints import CheckpointStore, trainable_tensors
from budwood.training.folder import RunFolder, read_events, read_status
from budwood.training.loss import weighted_nll
from budwood.training.plan import Plan
from budwood.training.train import train
from tests import tiny
from tests.training.rows import collate, lora_model, make_rows, settings
from tests.training.test_loss import t5


def run(path, model, rows=None, evaluation=(), *, seed=0, **changes):
    kinds = {key: changes.pop(key) for key in ("probes", "resume", "progress") if key in changes}
    rows = make_rows(20) if rows is None else rows
    folder = RunFolder(path)
    return train(
        model, rows, evaluation, collate, settings(**changes), folder, seed=seed, **{"progress": False} | kinds
    )


def losses(path) -> list[float]:
    return [event["loss"] for event in read_events(path) if "loss" in event]


def test_a_run_learns_and_says_what_it_did(tmp_path):
    model, rows = lora_model(), make_rows(20)
    result = run(tmp_path / "run", model, rows, epochs=8, max_grad_norm=0)
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0] - 0.1
    assert (result.steps, result.epochs, result.best_step, result.stopped_early) == (40, 8.0, None, False)
    assert result.final_loss == losses(tmp_path / "run")[-1]
    assert result.train_tokens == 8 * sum(len(row.input_ids) for row in rows)
    assert result.supervised_tokens == 8 * sum(w > 0 for row in rows for w in row.loss_weights)
    assert result.peak_memory_mib > 50 and result.wall_s > 0 and result.tokens_per_s > 0
    assert not model.training and not any(module.training for module in model.modules())
    assert result.to_dict()["steps"] == 40


def test_the_events_have_one_line_a_step(tmp_path):
    run(tmp_path / "run", lora_model(), make_rows(20), make_rows(5, 1), probes={"keep": lambda model: {"nll": 2}})
    events = read_events(tmp_path / "run")
    assert [event["step"] for event in events] == [0, 1, 2, 3, 4, 5]
    assert events[0].keys() == {"step", "eval_loss", "keep/nll"}
    figures = {"step", "epoch", "loss", "lr", "grad_norm", "tokens", "supervised_tokens", "tokens_per_s"}
    assert events[1].keys() == figures | {"eval_loss", "keep/nll"}
    assert events[5]["epoch"] == 1.0 and events[1]["keep/nll"] == 2.0


# --- exactness


@pytest.mark.parametrize("batch_size, accumulate", [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_accumulation_changes_nothing(tmp_path, batch_size, accumulate):
    """Against a hand-written loop that computes each step as one big batch."""
    rows, changes = make_rows(21), dict(epochs=2, weight_decay=0.1, max_grad_norm=1.0)
    ours = lora_model()
    run(tmp_path / "run", ours, rows, batch_size=batch_size, accumulate=accumulate, **changes)

    by_hand, wanted = lora_model(), []
    plan = Plan(settings(batch_size=8, **changes), len(rows), seed=0)
    optimizer = torch.optim.AdamW(
        [p for p in by_hand.parameters() if p.requires_grad], lr=1.0, betas=(0.9, 0.999), weight_decay=0.1
    )
    for epoch in range(2):
        sampler = StepSampler([len(row.input_ids) for row in rows], plan)
        sampler.set_epoch(epoch)
        for batch in sampler:
            optimizer.param_groups[0]["lr"] = 1e-2 * plan.learning_rate_factor(len(wanted))
            total, weight = weighted_nll(by_hand, collate([rows[i] for i in batch]))
            (total / weight).backward()
            torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            wanted.append((total / weight).item())
    assert losses(tmp_path / "run") == pytest.approx(wanted, abs=2e-6)
    for name, tensor in trainable_tensors(by_hand).items():
        torch.testing.assert_close(trainable_tensors(ours)[name], tensor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("base", [tiny.llama, tiny.gpt2])
def test_gradient_checkpointing_changes_nothing(tmp_path, base):
    found = []
    for checkpointing in (False, True):
        kind = {} if base is tiny.llama else {"target_modules": ["c_attn"], "fan_in_fan_out": True}
        model = lora_model(base=base(), **kind)
        run(tmp_path / str(checkpointing), model, gradient_checkpointing=checkpointing)
        found.append(trainable_tensors(model))
        assert not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_evaluation_is_exact_and_leaves_training_as_it_was(tmp_path):
    rows, evaluation = make_rows(20), make_rows(9, 1)

    def draws(model):
        return {"random": torch.rand(()).item()}

    often, never = lora_model(dropout=0.3), lora_model(dropout=0.3)
    run(tmp_path / "often", often, rows, evaluation, probes={"p": draws}, evaluate_every=1)
    run(tmp_path / "never", never, rows)
    assert losses(tmp_path / "often") == losses(tmp_path / "never")
    total, weight = (
        sum(v.item() for v in pair) for pair in zip(*(weighted_nll(often, collate([r])) for r in evaluation))
    )
    best = min(event["eval_loss"] for event in read_events(tmp_path / "often") if event["step"])
    assert best == pytest.approx(total / weight, abs=1e-6)


def test_a_step_without_weights_moves_nothing(tmp_path):
    rows = make_rows(4)
    for row in rows[:3]:
        row.loss_weights[:] = [0.0] * len(row.loss_weights)
    model = lora_model()
    run(tmp_path / "run", model, rows, batch_size=1)
    assert sorted(losses(tmp_path / "run"))[:3] == [0.0, 0.0, 0.0]


def test_the_base_is_bit_for_bit_the_same(tmp_path):
    model = lora_model()
    before = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    run(tmp_path / "run", model)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters() if not p.requires_grad)
    assert model.config.use_cache


@pytest.mark.parametrize(
    "make", [lambda: _soft(PromptTuningConfig), lambda: _soft(PromptEncoderConfig), lambda: _t5()]
)
def test_other_models_train(tmp_path, make):
    model = make()
    result = run(tmp_path / "run", model, evaluation=make_rows(4, 2), epochs=6, max_grad_norm=0, learning_rate=3e-2)
    assert result.best_evaluation_loss < read_events(tmp_path / "run")[0]["eval_loss"]


def _soft(config):
    base = tiny.llama()
    torch.manual_seed(0)
    return get_peft_model(base, config(task_type="CAUSAL_LM", num_virtual_tokens=4))


def _t5():
    return lora_model(base=t5(), target_modules=["q", "v"])


def test_a_base_in_bfloat16_trains(tmp_path):
    model = lora_model(base=tiny.llama().to(torch.bfloat16))
    assert run(tmp_path / "run", model, gradient_checkpointing=True).steps == 5
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}


# --- the best


def test_the_best_adapter_is_in_the_model_at_the_end(tmp_path):
    """With a learning rate far too high the evaluation loss soon rises: an early step is the best."""
    model, evaluation = lora_model(), make_rows(6, 1)
    result = run(tmp_path / "run", model, make_rows(8), evaluation, epochs=20, evaluate_every=1, learning_rate=0.05)
    history = {e["step"]: e["eval_loss"] for e in read_events(tmp_path / "run") if e["step"]}
    assert result.best_step == min(history, key=history.get) < result.steps == 40
    assert result.best_evaluation_loss == history[result.best_step]
    total, weight = weighted_nll(model, collate(evaluation))
    assert (total / weight).item() == pytest.approx(result.best_evaluation_loss, abs=1e-6)
    best = CheckpointStore(tmp_path / "run" / "checkpoints").load_best(result.best_step)
    assert all(torch.equal(best[name], tensor) for name, tensor in trainable_tensors(model).items())


def test_patience_ends_the_run(tmp_path):
    changes = dict(epochs=50, evaluate_every=1, learning_rate=0.05, patience=3)
    result = run(tmp_path / "run", lora_model(), make_rows(8), make_rows(6, 1), **changes)
    assert result.stopped_early and result.steps == result.best_step + 3


# --- what goes wrong


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


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tmp_path):
    found = []
    for name, seed in [("a", 0), ("b", 0), ("c", 1)]:
        run(tmp_path / name, lora_model(dropout=0.2), seed=seed)
        found.append(losses(tmp_path / name))
    assert found[0] == found[1] != found[2]


def test_nothing_is_written_to_standard_output(tmp_path, capfd):
    run(tmp_path / "run", lora_model(), evaluation=make_rows(3, 1), progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "step 5/5" in err and "eval" in err


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


def test_nothing_reports_or_prints_unless_asked(tmp_path, monkeypatch):
    trainers = []
    monkeypatch.setattr("budwood.training.train._run", lambda trainer, *_: trainers.append(trainer))
    run(tmp_path / "run", lora_model())
    assert [type(callback).__name__ for callback in trainers[0].callback_handler.callbacks] == ["Flow"]
