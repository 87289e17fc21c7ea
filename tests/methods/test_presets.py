"""The shipped presets of GIFT on the shapes of the paper: they resolve, attach, and have the paper's sizes."""

from __future__ import annotations

import pytest
import torch

import tests.tiny as tiny
from budwood import peft, recipe
from budwood.tuning.attach import attach, count_parameters
from budwood.tuning.registry import find_tuner

LLAMA_7B = dict(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32)
GIVEN = {"model": "m", "evidence": {"kind": "examples", "paths": ["rows.jsonl"]}}


@pytest.mark.parametrize(
    ("preset", "numbers"),
    [("paper_qv", 262_144), ("paper_qkvud", 3_506_176), ("block_qkv_o_ug_d", 524_288)],
)
def test_size_on_llama_7b(preset: str, numbers: int):
    peft.register()
    resolved = recipe.resolve(preset, GIVEN)
    with torch.device("meta"):
        base = tiny.llama(num_key_value_heads=32, **LLAMA_7B)
    assert count_parameters(attach(base, find_tuner(resolved.tuner_name), resolved.tuner, seed=0)) == numbers


def test_every_preset_has_a_size_here_or_is_no_gift():
    methods = {name: recipe.outline(name)["recipe"]["method"] for name in recipe.presets()}
    gifts = {name for name, method in methods.items() if method == "gift"}
    assert gifts == {"paper_qv", "paper_qkvud", "block_qkv_o_ug_d"}
