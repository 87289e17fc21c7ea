"""PEFT's own tuners: what the table says about size and place, and what does not fit is refused."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import BertConfig, BertModel

import tests.tiny as tiny
from budwood.errors import ConfigError, NotSupportedError
from budwood.tuning.attach import attach, count_parameters
from budwood.tuning.registry import find_tuner

D, KV, FF, LAYERS = 32, 16, 48, 2  # of tiny.llama


def attached(name: str, base: nn.Module | None = None, **settings: object) -> PeftModel:
    tuner = find_tuner(name)
    return attach(base if base is not None else tiny.llama(), tuner, tuner.settings(**settings), seed=0)


@pytest.mark.parametrize(
    ("name", "settings", "numbers"),
    [
        ("lora", {"rank": 4, "targets": ["q"]}, LAYERS * 4 * (D + D)),
        ("dora", {"rank": 4, "targets": ["q"]}, LAYERS * (4 * (D + D) + D)),
        ("vera", {"rank": 4, "targets": ["q"]}, LAYERS * (D + 4)),
        ("ia3", {}, LAYERS * (KV + KV + FF)),
        ("prompt", {"tokens": 5}, 5 * D),
        ("prefix", {"tokens": 5}, LAYERS * 5 * 2 * KV),
    ],
)
def test_the_size_that_the_table_states(name: str, settings: dict, numbers: int):
    assert count_parameters(attached(name, **settings)) == numbers


def test_the_base_of_a_soft_prompt_is_frozen_and_the_prompt_starts_in_the_vocabulary():
    model = attached("prompt", tokens=3)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == [
        "prompt_encoder.default.embedding.weight"
    ]
    prompt = model.prompt_encoder["default"].embedding.weight
    table = model.get_input_embeddings().weight
    assert (torch.cdist(prompt, table).min(1).values == 0).all()
    again, noise = attached("prompt", tokens=3), attached("prompt", tokens=3, init="random")
    assert torch.equal(again.prompt_encoder["default"].embedding.weight, prompt)
    assert (torch.cdist(noise.prompt_encoder["default"].embedding.weight, table).min(1).values > 0).all()


def test_ia3_scales_outputs_of_keys_and_values_and_inputs_of_the_feed_forward():
    base = attached("ia3").get_base_model()
    layer = base.model.layers[0]
    assert not layer.self_attn.k_proj.is_feedforward and layer.mlp.down_proj.is_feedforward
    fused = attached("ia3", tiny.gpt2()).get_base_model().transformer.h[0]
    assert not fused.attn.c_attn.is_feedforward and fused.mlp.c_proj.is_feedforward
    assert not hasattr(fused.attn.c_proj, "is_feedforward")


def test_veras_projections_are_saved_with_it(tmp_path):
    model = attached("vera", rank=4, projection_seed=3)
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    stored = PeftModel.from_pretrained(tiny.llama(), tmp_path).base_model.vera_A["default"]
    assert torch.equal(stored, model.base_model.vera_A["default"])


@pytest.mark.parametrize("name", ["prompt", "prefix"])
def test_a_soft_prompt_needs_a_causal_model(name: str):
    small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=99)
    with pytest.raises(NotSupportedError, match="soft prompt for BertModel"):
        attached(name, BertModel(BertConfig(**small)))


@pytest.mark.parametrize("name", ["lora", "dora", "vera", "ia3"])
def test_an_unknown_layer_is_named(name: str):
    with pytest.raises(ConfigError, match="'qq'"):
        attached(name, targets=["qq"])
