"""The shortest description of the adapted modules, tried with PEFT's own matching."""

from __future__ import annotations

import pytest

from budwood.errors import NotSupportedError
from budwood.export.targets import describe

LLAMA = [
    f"model.layers.{i}.{leaf}"
    for i in range(3)
    for leaf in ("self_attn", "self_attn.q_proj", "self_attn.k_proj", "mlp", "mlp.up_proj")
]
GPT2 = [f"transformer.h.{i}.{leaf}" for i in range(2) for leaf in ("attn.c_attn", "attn.c_proj", "mlp.c_proj")]


def among(every, *words):
    return [name for name in every if all(word in name for word in words)]


def test_every_module_of_a_kind_needs_only_its_last_name():
    assert describe(among(LLAMA, "_proj"), LLAMA).modules == ["k_proj", "q_proj", "up_proj"]


def test_the_same_kinds_in_some_layers_use_layers_to_transform():
    targets = describe([*among(LLAMA, "0", "q_proj"), *among(LLAMA, "2", "q_proj")], LLAMA)
    assert (targets.modules, targets.layers) == (["q_proj"], [0, 2])


def test_a_last_name_that_others_share_gets_a_second_component():
    targets = describe(among(GPT2, "attn.c_proj"), GPT2)
    assert (targets.modules, targets.layers) == (["attn.c_proj"], None)


def test_another_choice_in_each_layer_needs_full_names():
    adapted = [*among(LLAMA, "0", "q_proj"), *among(LLAMA, "1", "k_proj")]
    assert describe(adapted, LLAMA).modules == adapted


@pytest.mark.parametrize("adapted", [LLAMA[1:2], among(LLAMA, "k_proj"), among(GPT2, "c_proj"), among(GPT2, "1")])
def test_what_is_described_is_what_matches(adapted):
    every = LLAMA + GPT2
    assert describe(adapted, every).match(every) == set(adapted)


def test_names_that_peft_cannot_tell_apart_are_refused():
    with pytest.raises(NotSupportedError, match="cannot tell"):
        describe(["layers.0.q"], ["layers.0.q", "decoder.layers.0.q"])
