"""Prompts on a quantised base: gradients of its dense twin, also after an evaluation, and not a byte of it changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel, PromptTuningConfig, get_peft_model
from torch import nn
from torch.testing import assert_close

from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.runtime import Prompt
from budwood.models import load_base
from tests.methods.idp import texts
from tests.methods.idp.banks import TEXTS, batch, plain_logits
from tests.methods.idp.test_lesson import learn
from tests.models import quantised_folders as folders
from tests.tuning.test_quantised_bases import frozen_bytes

IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])


@pytest.fixture(scope="module", params=["+nf4", "+int8wo"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return folders.made(request.param, tmp_path_factory.mktemp("quantised") / "base")


def base(reference: str) -> nn.Module:
    return load_base(reference, device="cpu", dtype="float32").model


def prompted(model: nn.Module) -> PeftModel:
    """The model behind a random prompt of PEFT."""
    made = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5))
    nn.init.normal_(
        made.prompt_encoder["default"].embedding.weight, std=0.5, generator=torch.Generator().manual_seed(1)
    )
    return made


def gradient(model: PeftModel) -> torch.Tensor:
    model.train().zero_grad()
    model(input_ids=IDS, labels=IDS).loss.backward()
    return model.prompt_encoder["default"].embedding.weight.grad.flatten().clone()


def test_gradients_are_those_of_the_dense_twin_also_after_an_evaluation(reference):  # property 16
    model, wanted = prompted(base(reference)), gradient(prompted(folders.twin(reference)))
    for after_an_evaluation in (False, True):
        if after_an_evaluation:
            with torch.no_grad():
                model.eval()(input_ids=IDS)
        found = gradient(model)
        assert torch.cosine_similarity(found, wanted, dim=0) > 0.999, after_an_evaluation
        assert 0.98 < found.norm() / wanted.norm() < 1.02


def test_a_trained_bank_leaves_every_byte_of_the_base(reference, tmp_path: Path):  # property 16
    order = texts.order(reference, texts.write(tmp_path, kinds=["sea", "law"]))  # evaluates after each second step
    learned = learn(order, tmp_path / "run")
    assert all(record["held_out_loss"] is not None for record in learned.metrics["prompts"])
    assert frozen_bytes(learned.model.model) == frozen_bytes(base(reference))
    assert all(parameter.grad is None for parameter in learned.model.model.parameters())


def test_each_row_equals_its_prompt_alone(reference):  # property 2
    drawn = [torch.randn(n, 64, generator=torch.Generator().manual_seed(n)) * 0.5 for n in (3, 5)]
    prompts = [Prompt(f"p{len(one)}", one, PromptTuningConfig(num_virtual_tokens=len(one))) for one in drawn]
    bank = PromptBank(base(reference).eval(), prompts)
    ids, mask = batch()
    for number, text, row, kept in zip([0, 1, 1, 0], TEXTS, bank(ids, mask, [0, 1, 1, 0]).logits, mask.bool()):
        assert_close(row[kept], plain_logits(bank, number, text), rtol=0, atol=1e-4)
