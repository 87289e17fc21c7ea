import pytest
import torch
from peft import PromptEncoderConfig, PromptTuningConfig, get_peft_model

from budwood.training.batches import StepSampler
from budwood.training.checkpoints import CheckpointStore, trainable_tensors
from budwood.training.folder import read_events
from budwood.training.loss import weighted_nll
from budwood.training.plan import Plan
from tests import tiny
from tests.training.rows import collate, lora_model, losses, make_rows, run, settings
from tests.training.test_loss import t5


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


def test_a_probe_may_judge_which_adapter_is_the_best(tmp_path):
    """The figure, not the evaluation loss, decides; patience counts it, too."""
    figures = iter([9.0, 3.0, 1.0, 2.0, 2.0])
    model = lora_model()
    kept = []

    def look(model):
        kept.append({name: tensor.clone() for name, tensor in trainable_tensors(model).items()})
        return {"cost": next(figures)}

    changes = dict(probes={"keep": look}, judged_by="keep/cost", evaluate_every=1, patience=2, epochs=2)
    result = run(tmp_path / "run", model, make_rows(20), **changes)
    assert (result.best_step, result.best_evaluation_loss) == (2, 1.0)
    assert (result.steps, result.stopped_early) == (4, True)
    assert all(torch.equal(tensor, kept[2][name]) for name, tensor in trainable_tensors(model).items())


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


def test_nothing_reports_or_prints_unless_asked(tmp_path, monkeypatch):
    trainers = []
    monkeypatch.setattr("budwood.training.train._run", lambda trainer, *_: trainers.append(trainer))
    run(tmp_path / "run", lora_model())
    assert [type(callback).__name__ for callback in trainers[0].callback_handler.callbacks] == ["Flow"]
