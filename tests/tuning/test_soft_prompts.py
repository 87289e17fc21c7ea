"""A soft prompt behind the cache against PEFT's own forward."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel

from budwood.tuning.soft_prompts import SoftPrompt
from tests import tiny
from tests.methods.idp.banks import batch, save_prompts


@pytest.fixture
def model(tmp_path) -> PeftModel:
    return PeftModel.from_pretrained(tiny.llama(), save_prompts(tmp_path, (5,))[0]).eval()


def test_forward_gives_what_peft_gives_on_either_side_of_the_pads(model):
    prompted = SoftPrompt(model)
    for left in (True, False):
        ids, mask = batch(left=left)
        with torch.no_grad():
            found = prompted(ids, mask).logits
        for row in range(len(ids)):
            with torch.no_grad():
                wanted = model(input_ids=ids[row][mask[row].bool()][None]).logits[0, 5:]
            assert torch.allclose(found[row][mask[row].bool()], wanted, atol=1e-4)


def test_there_is_one_prompt_to_select(model):
    ids, mask = batch()
    assert SoftPrompt(model).select(ids, mask).selection.tolist() == [0] * len(ids)
