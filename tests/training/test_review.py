"""Mix-review: how many rows each epoch reviews, and that they are rows like any other."""

import pytest
import torch

from budwood.training.batches import StepSampler
from budwood.training.checkpoints import trainable_tensors
from budwood.training.loss import weighted_nll
from budwood.training.plan import Plan
from budwood.training.retention import Retention
from budwood.training.review import Review
from tests.training.rows import collate, lora_model, losses, make_rows, run, settings


@pytest.mark.parametrize("rows, batch_size", [(20, 4), (21, 4), (5, 8)])
def test_an_epoch_reviews_as_many_rows_as_the_paper_says(rows, batch_size):
    plan = Plan(settings(epochs=4, batch_size=batch_size), rows, seed=0)
    review = Review(make_rows(9), ratio=1.5, decay=0.6)
    for epoch in range(4):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        chosen = [review.chosen(step, plan) for step in steps]
        assert sum(map(len, chosen)) == round(rows * 1.5 * 0.6**epoch)
        flat = [row for step in chosen for row in step]
        seen = [flat[start : start + 9] for start in range(0, len(flat), 9)]
        assert all(len(set(turn)) == len(turn) for turn in seen)
    first = [review.chosen(step, plan) for step in range(plan.steps_per_epoch)]
    assert first != [review.chosen(step + plan.steps_per_epoch, plan) for step in range(plan.steps_per_epoch)]


@pytest.mark.parametrize("batch_size, accumulate", [(4, 1), (2, 2), (1, 4)])
def test_a_step_is_the_mean_over_new_and_reviewed_rows(tmp_path, batch_size, accumulate):
    """Against a loop that puts both into one batch, whatever the split."""
    rows, pool = make_rows(8), make_rows(5, seed=1)
    review, changes = Review(pool, ratio=1.0, decay=0.5), dict(epochs=2, max_grad_norm=0, warmup_steps=0)
    model = lora_model()
    run(
        tmp_path / "run",
        model,
        rows,
        batch_size=batch_size,
        accumulate=accumulate,
        retention=Retention(review=review),
        **changes,
    )
    naive = lora_model().train()
    plan = Plan(settings(batch_size=4, **changes), len(rows), seed=0)
    optimiser = torch.optim.AdamW([p for p in naive.parameters() if p.requires_grad], lr=1e-2, weight_decay=0)
    sampler, found = StepSampler([len(row.input_ids) for row in rows], plan), []
    for step in range(plan.total_steps):
        sampler.set_epoch(step // plan.steps_per_epoch)
        new = list(sampler)[step % plan.steps_per_epoch]
        batch = [rows[i] for i in new] + [pool[i] for i in review.chosen(step, plan)]
        assert len(batch) == (8 if step < 2 else 6)
        total, weight = weighted_nll(naive, collate(batch))
        loss = total / weight
        optimiser.param_groups[0]["lr"] = 1e-2 * plan.learning_rate_factor(step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    assert losses(tmp_path / "run") == pytest.approx(found, rel=1e-5)
    for name, tensor in trainable_tensors(naive).items():
        torch.testing.assert_close(trainable_tensors(model)[name], tensor, rtol=1e-4, atol=1e-5)
