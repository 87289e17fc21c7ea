"""Tiny bases of several architectures as model folders, as users have them."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from transformers import (
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from budwood.models import Source, locate
from tests import tiny

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SIZES: dict = dict(
    vocab_size=259,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    initializer_range=0.2,
    bos_token_id=None,
    eos_token_id=256,
    pad_token_id=257,
)


def mistral() -> PreTrainedModel:
    return _made(MistralForCausalLM, MistralConfig(**SIZES))


def qwen2() -> PreTrainedModel:
    """With biases in q, k and v that are not zero."""
    return _made(Qwen2ForCausalLM, Qwen2Config(**SIZES))


def qwen3() -> PreTrainedModel:
    """With heads wider than hidden size / heads, and normalised q and k."""
    return _made(Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16))


def _made(kind: type, config) -> PreTrainedModel:
    torch.manual_seed(0)
    model = kind(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("proj.bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def saved(model: PreTrainedModel, folder: Path) -> Source:
    """Save the model with the tiny tokenizer and return it as a base."""
    return locate(str(tiny.save(model, folder)))


def gpt2_gguf(model: GPT2LMHeadModel, path: Path) -> Path:
    """Write a GPT-2 as llama.cpp has it: Conv1D weights are transposed, the tied output layer is left out."""
    names, config = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, 2), model.config
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    for name, weight in model.named_parameters():
        transposed = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        values = (weight.T if transposed else weight).detach().contiguous().numpy()
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
