"""What a step's loss is a mean over, in each normalisation, against sums in float64 and in the limits."""

import dataclasses

import pytest
import torch

from budwood.training.batches import BLANK, Rows
from budwood.training.checkpoints import trainable_tensors
from budwood.training.loss import token_nll, weighted_nll
from tests import tiny
from tests.training.rows import Encoded, collate, lora_model, losses, make_rows, run

ALL = ["token", "sequence", "count", "none"]


def with_weights(row: Encoded, weight) -> Encoded:
    return dataclasses.replace(row, loss_weights=[float(weight) if label != -100 else 0.0 for label in row.labels])


def loss(model, batch, normalise):
    numerator, denominator = weighted_nll(model, batch, normalise)
    return numerator / denominator


def by_hand(model, rows, normalise):
    """The definitions, row by row in float64, without padding."""
    sums, weights, counts = [], [], []
    for row in rows:
        nll, targets = token_nll(model, collate([row]))
        sums.append((nll.double() * targets.weights.double()).sum().item())
        weights.append(targets.weights.double().sum().item())
        counts.append(len(nll))
    if normalise == "sequence":
        return sum(s / w for s, w in zip(sums, weights) if w) / len(rows)
    return sum(sums) / {"token": sum(weights), "count": sum(counts), "none": len(rows)}[normalise]


@pytest.mark.parametrize("normalise", ALL)
def test_each_is_its_definition(normalise):
    model, rows = tiny.llama(), make_rows(6)
    rows[2] = with_weights(rows[2], 0)
    found = loss(model, collate(rows), normalise).item()
    assert found == pytest.approx(by_hand(model, rows, normalise), rel=1e-6)


def test_equal_weights_are_the_usual_means():
    """Property 1: by token, the loss of transformers; by sequence, the mean of the rows' own."""
    model, rows = tiny.llama(), [with_weights(row, 0.7) for row in make_rows(5)]
    batch = collate(rows)
    usual = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).loss
    torch.testing.assert_close(loss(model, batch, "token"), usual, rtol=1e-6, atol=1e-6)
    own = [model(torch.tensor([r.input_ids]), labels=torch.tensor([r.labels])).loss for r in rows]
    torch.testing.assert_close(loss(model, batch, "sequence"), torch.stack(own).mean(), rtol=1e-6, atol=1e-6)


def test_a_factor_on_the_weights_of_a_sequence_changes_nothing():
    """Property 2, and its consequence: Σ_t w_t ∂L/∂w_t = 0 for each sequence."""
    rows, scaled = make_rows(4), make_rows(4)
    scaled[1] = dataclasses.replace(rows[1], loss_weights=[0.01 * w for w in rows[1].loss_weights])
    found = []
    for some in (rows, scaled):
        model = lora_model()
        loss(model, collate(some), "sequence").backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-5, atol=1e-7)
    batch = collate(rows)
    batch["loss_weights"].requires_grad_()
    loss(tiny.llama(), batch, "sequence").backward()
    products = (batch["loss_weights"] * batch["loss_weights"].grad).detach()
    assert products.abs().max() > 1e-3 and products.sum(dim=1).abs().max() < 1e-6


@pytest.mark.parametrize("normalise", ALL)
def test_a_weight_of_zero_is_no_label(normalise):
    """Property 3: what one target adds is the same bits; only `none` and `sequence` know that the row was there."""
    rows = make_rows(3)
    rows[0].loss_weights[-1] = 0.0
    unlabelled = [dataclasses.replace(rows[0], labels=[*rows[0].labels[:-1], -100]), *rows[1:]]
    first, second = (weighted_nll(tiny.llama(), collate(some), normalise) for some in (rows, unlabelled))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normalise", ALL)
def test_a_row_without_weight_adds_exactly_nothing(normalise, dtype):
    rows = make_rows(3)
    silent = with_weights(make_rows(1, seed=5)[0], 0)
    gradients = []
    for some in ([silent], [silent, *rows]):
        model = lora_model(base=tiny.llama().to(dtype))
        numerator, denominator = weighted_nll(model, collate(some), normalise)
        numerator.backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert not any(g.any() for g in gradients[0])
    assert all(g.isfinite().all() for g in gradients[1]) and any(g.any() for g in gradients[1])
    sequences = {"sequence": 4.0, "none": 4.0}
    if normalise in sequences:
        assert denominator.item() == sequences[normalise]


@pytest.mark.parametrize("normalise", ALL)
def test_a_blank_row_of_an_idle_process_counts_nowhere(normalise):
    model, rows = tiny.llama(), make_rows(3)
    numerator, denominator = weighted_nll(model, collate([Rows(rows)[BLANK]]), normalise)
    assert numerator.item() == denominator.item() == 0


@pytest.mark.parametrize("normalise", ALL)
def test_padding_changes_nothing(normalise):
    """Property 4: pads on the left, on the right, or more of them; each weight stays with its token."""
    model, rows = tiny.llama(), make_rows(3)
    wanted = loss(model, collate(rows), normalise)
    width = collate(rows)["input_ids"].shape[1] + 5
    for left in (False, True):
        batch = {name: [] for name in collate(rows)}
        for row in rows:
            for name, value in collate([row]).items():
                fill = {"labels": -100, "input_ids": 257}.get(name, 0)
                pads = torch.full((1, width - value.shape[1]), fill, dtype=value.dtype)
                batch[name].append(torch.cat([pads, value] if left else [value, pads], dim=1))
        joined = {name: torch.cat(values) for name, values in batch.items()}
        torch.testing.assert_close(loss(model, joined, normalise), wanted, rtol=1e-5, atol=1e-5)


def test_a_weight_multiplies_the_loss_of_its_own_token():
    """Property 4: with one weight at t alone, the loss is that of predicting token t."""
    model, (row,) = tiny.llama(), make_rows(1)
    scores = model(torch.tensor([row.input_ids])).logits[0].log_softmax(dim=-1)
    for t in range(1, len(row.input_ids)):
        weights = [float(position == t) for position in range(len(row.input_ids))]
        one = Encoded(row.input_ids, row.input_ids, weights)
        expected = -scores[t - 1, row.input_ids[t]]
        torch.testing.assert_close(loss(model, collate([one]), "sequence"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalise", ALL)
def test_accumulation_and_batches_change_nothing(tmp_path, normalise):
    """Property 5, over whole runs with an evaluation: 8 x 1 and 1 x 8, with a row without weight among them."""
    rows = make_rows(11)
    rows[4] = with_weights(rows[4], 0)
    found = []
    for name, size in (("8x1", 8), ("1x8", 1)):
        model = lora_model()
        changes = dict(batch_size=size, accumulate=8 // size, normalise=normalise, max_grad_norm=0)
        result = run(tmp_path / name, model, rows, make_rows(4, 2), **changes)
        found.append((losses(tmp_path / name), result.best_evaluation_loss, trainable_tensors(model)))
    (one, one_evaluated, one_tensors), (two, two_evaluated, two_tensors) = found
    assert two == pytest.approx(one, rel=1e-6) and two_evaluated == pytest.approx(one_evaluated, rel=1e-6)
    for name, tensor in one_tensors.items():
        torch.testing.assert_close(two_tensors[name], tensor, rtol=0, atol=2e-6)
