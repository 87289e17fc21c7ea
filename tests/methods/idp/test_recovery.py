"""Repair itself, small and seeded: a model that knows two kinds of text, rounded to 2 bits, and a prompt for each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from budwood.data.collate import Collator
from budwood.data.documents import read_documents
from budwood.data.offsets import OffsetTokens
from budwood.data.settings import DataSettings
from budwood.evals.choice import Choices, measure_choices
from budwood.evals.likelihood import likelihoods
from budwood.methods.idp.domains import divide
from budwood.methods.idp.settings import BankSettings
from budwood.models import find_sites
from budwood.training.loss import weighted_nll
from tests import tiny
from tests.methods.idp import texts
from tests.methods.idp.test_lesson import float_base, learn

GROUP, STEPS = 16, 150
RECOVERY = {"max_steps": 40, "evaluate_every": 40, "save_every": 40}


def taught(files: list[Path]) -> nn.Module:
    """The tiny Llama after some steps on all of the text."""
    model, documents = tiny.llama().train(), read_documents(files).documents
    division = divide(documents, OffsetTokens(tiny.tokenizer()), BankSettings(window=64), DataSettings(), seed=0)
    batch = Collator(257)(division.mixture()[0])
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        total, weight = weighted_nll(model, batch)
        (total / weight).backward()
        optimiser.step()
        optimiser.zero_grad()
    return model.eval()


@torch.no_grad()
def round_to_2_bits(model: nn.Module) -> None:
    """Round each linear weight to four levels a group of inputs, the largest kept."""
    for site in find_sites(model):
        weight = model.get_submodule(site.name).weight
        groups = weight.reshape(len(weight), -1, GROUP)
        step = groups.abs().amax(-1, keepdim=True) / 1.5
        weight.copy_(((groups / step - 0.5).round().clamp(-2, 1) + 0.5).mul(step).reshape(weight.shape))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Choices, float]:
    """The choices on held-out text, and the loss of the model before it was rounded."""
    place = tmp_path_factory.mktemp("recovery")
    files = texts.write(place, kinds=["sea", "law"])
    model = taught(files)
    order = texts.order(str(tiny.save(model, place / "whole")), files)
    whole = float_base(order).model
    round_to_2_bits(model)
    order = texts.order(str(tiny.save(model, place / "rounded")), files, training=RECOVERY)
    learned = learn(order, place / "run")
    scored = likelihoods(whole, learned.held_out)
    loss = sum(one.nll for one in scored) / sum(one.tokens for one in scored)
    return measure_choices(learned.model, learned.parts, learned.model.model, learned.held_out), loss


def test_prompts_win_back_a_part_of_what_rounding_lost(measured):  # property 20
    choices, whole = measured
    nll = choices.to_dict()["nll"]
    assert whole < nll["chosen"] < nll["base"] - 0.1 * (nll["base"] - whole)


def test_the_choice_lies_between_the_worst_prompt_and_the_oracle(measured):  # property 20
    choices, _ = measured
    alone = [choices.mean(losses) for losses in choices.alone.T]
    nll = choices.to_dict()["nll"]
    assert nll["oracle"] <= nll["chosen"] <= max(alone) and nll["oracle"] <= min(alone)
    assert nll["best constant"] == min(alone)
