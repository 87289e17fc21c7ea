"""Copies of an adapter's parameters, one a row, against the model that holds them."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import IA3Config, LoraConfig
from torch.testing import assert_close

from budwood.errors import NotSupportedError
from budwood.methods.taalm.theta import EachRow, LoraRows, choose_theta, token_losses
from tests import tiny
from tests.methods.taalm import cases

TARGETS = ["q_proj", "v_proj"]


@pytest.mark.parametrize("kind", [EachRow, LoraRows])
def test_at_the_start_the_losses_are_those_of_the_model(kind):
    model, batch = cases.gpt2_lora(), cases.evidence()
    theta = kind(model)
    found = token_losses(theta, theta.start(3), batch)
    for row, length in enumerate(cases.LENGTHS):
        ids = batch["input_ids"][row, :length]
        logits = model(input_ids=ids[None]).logits[0]
        naive = [-logits[t - 1].log_softmax(-1)[ids[t]] for t in range(1, length)]
        assert_close(found[row, 1:length], torch.stack(naive))
        assert (found[row, length:] == 0).all() and found[row, 0] == 0


def test_each_row_has_a_copy_of_its_own():
    model, batch = cases.gpt2_lora(), cases.evidence()
    both = []
    for theta in (EachRow(model), LoraRows(model)):
        point = theta.start(3)
        generator = torch.Generator().manual_seed(7)
        moved = [value + 0.1 * torch.randn(value.shape, generator=generator, dtype=value.dtype) for value in point]
        losses = token_losses(theta, moved, batch)
        only = [torch.where(torch.arange(3).view(-1, *[1] * (v.ndim - 1)) == 1, v, p) for v, p in zip(moved, point)]
        changed = (token_losses(theta, only, batch) - token_losses(theta, point, batch)).abs().amax(dim=1)
        assert changed[1] > 1e-3 and changed[0] == changed[2] == 0
        both.append(losses)
    assert_close(*both)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (LoraConfig(target_modules=TARGETS), LoraRows),
        (LoraConfig(target_modules=TARGETS, use_rslora=True, lora_dropout=0.1), LoraRows),
        (LoraConfig(target_modules=TARGETS, use_dora=True), EachRow),
        (LoraConfig(target_modules=TARGETS, lora_bias=True), EachRow),
        (LoraConfig(target_modules=TARGETS, modules_to_save=["lm_head"]), EachRow),
        (IA3Config(target_modules=TARGETS, feedforward_modules=[]), EachRow),
    ],
    ids=["lora", "rslora", "dora", "bias", "saved", "ia3"],
)
@pytest.mark.filterwarnings("ignore:.*merging LoRA weights won't be possible")
@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings=True`:UserWarning")
def test_the_fast_way_is_taken_only_where_it_is_exact(config, kind):
    model = cases.llama(config, tie_word_embeddings=False)
    theta = choose_theta(model.train())
    assert type(theta) is kind
    batch = cases.evidence()
    expected = token_losses(EachRow(model), EachRow(model).start(3), batch)
    assert_close(token_losses(theta, theta.start(3), batch), expected, rtol=1e-4, atol=1e-5)
    assert model.training


def test_a_frozen_model_is_refused():
    with pytest.raises(NotSupportedError, match="no trained parameter"):
        choose_theta(tiny.llama().requires_grad_(False))


@pytest.mark.parametrize("kind", [EachRow, LoraRows])
def test_the_model_is_bit_for_bit_the_same_afterwards(kind):  # property 8
    model = cases.gpt2_lora()
    before = copy.deepcopy(model.state_dict())
    theta = kind(model)
    token_losses(theta, [value + 1 for value in theta.start(3)], cases.evidence()).sum().backward()
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.grad is None for parameter in model.parameters())
