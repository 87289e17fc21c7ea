"""The KL anchor: what it is held to, that no split of a step changes it, and where it cannot be."""

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from torch.nn import functional as F

from budwood.errors import NotSupportedError
from budwood.training.anchor import Anchor
from budwood.training.batches import StepSampler
from budwood.training.checkpoints import trainable_tensors
from budwood.training.folder import read_events
from budwood.training.loss import target_logits, weighted_nll
from budwood.training.plan import Plan
from budwood.training.retention import Retention
from tests import tiny
from tests.training.rows import collate, lora_model, losses, make_rows, run, settings


def anchored(model, rows, weight=2.0, **changes):
    return Anchor.of(
        model,
        rows,
        collate,
        **(dict(weight=weight, rows_per_step=3, batch_size=2, without=model.disable_adapter()) | changes),
    )


@torch.no_grad()
def moved(model):
    """Give every trained parameter other values."""
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw)
    return model


def naive(model, batch):
    """The sum of KL(base ‖ adapted) from all logits."""
    with torch.no_grad(), model.disable_adapter():
        before = target_logits(model, batch)[0].double().log_softmax(-1)
    after = target_logits(model, batch)[0].double().log_softmax(-1)
    return F.kl_div(after, before, log_target=True, reduction="sum")


def test_it_is_the_divergence_from_the_base_whose_adapter_is_off():
    model, rows = moved(lora_model()), make_rows(7)
    anchor = anchored(model, rows)
    picked = [5, 0, 3]
    batch = collate([anchor.rows[i] for i in picked])
    found = anchor.divergence(model, batch, picked)
    assert found.item() == pytest.approx(naive(model, batch).item(), rel=1e-4) and found > 1
    assert anchor.tokens(picked) == int((batch["loss_weights"] > 0).sum())
    with model.disable_adapter():
        assert anchor.divergence(model, batch, picked).item() == pytest.approx(0, abs=1e-4)


def test_without_switching_off_it_is_held_to_the_model_as_it_is():
    model = moved(lora_model())
    anchor = anchored(model, make_rows(4), without=None)
    assert anchor.divergence(model, collate(anchor.rows[:2]), [0, 1]).item() == pytest.approx(0, abs=1e-4)
    with torch.no_grad(), model.disable_adapter():
        assert anchor.divergence(model, collate(anchor.rows[:2]), [0, 1]) > 1


@pytest.mark.parametrize("batch_size, accumulate", [(4, 1), (2, 2), (1, 4)])
def test_no_split_of_a_step_changes_the_term(tmp_path, batch_size, accumulate):
    """Against a loop with the step's rows in one batch, the anchor's in another, and all logits."""
    rows, kept, changes = make_rows(8), make_rows(7, seed=1), dict(epochs=3, max_grad_norm=0, warmup_steps=0)
    model = lora_model()
    anchor = anchored(model, kept)
    split = dict(batch_size=batch_size, accumulate=accumulate)
    run(tmp_path / "run", model, rows, retention=Retention(anchor=anchor), **split, **changes)
    hand = lora_model().train()
    plan = Plan(settings(batch_size=4, **changes), len(rows), seed=0)
    optimiser = torch.optim.AdamW([p for p in hand.parameters() if p.requires_grad], lr=1e-2, weight_decay=0)
    sampler, found = StepSampler([len(row.input_ids) for row in rows], plan), []
    for step in range(plan.total_steps):
        sampler.set_epoch(step // plan.steps_per_epoch)
        total, weight = weighted_nll(hand, collate([rows[i] for i in list(sampler)[step % plan.steps_per_epoch]]))
        chosen = anchor.chosen(step, 0)
        kl = naive(hand, collate([anchor.rows[i] for i in chosen])) / anchor.tokens(chosen)
        optimiser.param_groups[0]["lr"] = 1e-2 * plan.learning_rate_factor(step)
        optimiser.zero_grad()
        (total / weight + 2.0 * kl).backward()
        optimiser.step()
        found.append(kl.item())
    events = [event for event in read_events(tmp_path / "run") if "loss" in event]
    assert [event["anchor_kl"] for event in events] == pytest.approx(found, rel=1e-3, abs=1e-6)
    assert found[0] == pytest.approx(0, abs=1e-6) and found[-1] > 1e-4
    for name, tensor in trainable_tensors(hand).items():
        torch.testing.assert_close(trainable_tensors(model)[name], tensor, rtol=1e-3, atol=1e-5)


def test_a_strong_anchor_holds_the_predictions(tmp_path):
    rows, kept = make_rows(8), make_rows(6, seed=1)
    drift = {}
    for weight in (0.01, 30.0):
        model = lora_model()
        retention = Retention(anchor=anchored(model, kept, weight))
        run(tmp_path / str(weight), model, rows, epochs=10, retention=retention)
        drift[weight] = naive(model, collate(kept)).item()
    assert drift[30.0] < drift[0.01] / 3
    assert losses(tmp_path / "0.01")[-1] < losses(tmp_path / "30.0")[-1]


def test_a_soft_prompt_is_anchored_to_the_base_without_it():
    torch.manual_seed(0)
    model = get_peft_model(tiny.llama(), PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))
    anchor = anchored(model, make_rows(3))
    batch = collate(anchor.rows)
    assert anchor.divergence(model, batch, [0, 1, 2]).item() == pytest.approx(naive(model, batch).item(), rel=1e-4)


def test_a_head_with_an_adapter_is_refused():
    model = lora_model(base=tiny.llama(tie_word_embeddings=False), target_modules=["q_proj", "lm_head"])
    with pytest.raises(NotSupportedError, match="frozen output head") as caught:
        anchored(model, make_rows(2))
    assert "learner.anchor" in caught.value.action
