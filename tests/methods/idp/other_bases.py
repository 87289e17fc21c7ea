"""Tiny bases on which no prompt can be cached: windows, ALiBi, recurrent and hybrid layers; none is a Llama."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
    PreTrainedModel,
)

VOCABULARY = dict(vocab_size=259, initializer_range=0.2)
SMALL = VOCABULARY | dict(hidden_size=32, num_hidden_layers=2)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=48)
WINDOW = 6


def mistral(window: int | None = WINDOW) -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SMALL, **HEADS, sliding_window=window))


def gemma2() -> PreTrainedModel:
    """A window in one layer of two, and a soft cap in both; its default attention leaves the cap out."""
    config = Gemma2Config(**SMALL, **HEADS, head_dim=8, query_pre_attn_scalar=8, sliding_window=WINDOW)
    return Gemma2ForCausalLM._from_config(config, attn_implementation="eager")


def falcon() -> PreTrainedModel:
    return FalconForCausalLM(FalconConfig(**SMALL, num_attention_heads=4, alibi=True, multi_query=False))


def bloom() -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(**VOCABULARY, hidden_size=32, n_layer=2, n_head=4))


def mpt() -> PreTrainedModel:
    return MptForCausalLM(MptConfig(**VOCABULARY, d_model=32, n_layers=2, n_heads=4))


def lfm2() -> PreTrainedModel:
    return Lfm2ForCausalLM(Lfm2Config(**SMALL, **HEADS, layer_types=["conv", "full_attention"]))


def mamba() -> PreTrainedModel:
    return MambaForCausalLM(MambaConfig(**SMALL, state_size=4))


MAKERS: dict[str, Callable[[], PreTrainedModel]] = {
    "mistral": mistral,
    "gemma2": gemma2,
    "falcon": falcon,
    "bloom": bloom,
    "mpt": mpt,
    "lfm2": lfm2,
    "mamba": mamba,
}
ATTENTIVE = ("mistral", "gemma2", "falcon", "bloom", "mpt")  # all of whose layers attend


def made(name: str) -> PreTrainedModel:
    """The same weights each time."""
    torch.manual_seed(0)
    model = MAKERS[name]().eval()
    model.generation_config.eos_token_id = None
    return model
