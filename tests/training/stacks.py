"""Language models of four tiny blocks in five architectures, and LoRA in their top blocks."""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests import tiny

_IDS = {"bos_token_id": None, "eos_token_id": 256, "pad_token_id": 257, "vocab_size": 259}
_WIDE = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "initializer_range": 0.2}


def _gpt2(dropout: float = 0.0) -> PreTrainedModel:
    sizes = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 256, "initializer_range": 0.2}
    drop = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(**_IDS, **sizes, **drop))


STACKS = {
    "llama": lambda: tiny.llama(num_hidden_layers=4),
    "gpt2": _gpt2,
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_IDS, **_WIDE, intermediate_size=48, num_key_value_heads=2)),
    "opt": lambda: OPTForCausalLM(
        OPTConfig(
            **_IDS,
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            ffn_dim=48,
            word_embed_proj_dim=32,
            max_position_embeddings=256,
            dropout=0.0,
            init_std=0.2,
        )
    ),
    "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_IDS, **_WIDE, intermediate_size=48)),
    "bloom": lambda: BloomForCausalLM(
        BloomConfig(**_IDS, hidden_size=32, n_layer=4, n_head=4, hidden_dropout=0.0, attention_dropout=0.0)
    ),
}
TARGETS = {"gpt2": ["c_attn"], "neox": ["query_key_value"], "bloom": ["query_key_value"]}


def stack(name: str, dropout: float = 0.0) -> PreTrainedModel:
    """Return one of `STACKS`; dropout is GPT-2's."""
    torch.manual_seed(0)
    return (_gpt2(dropout) if name == "gpt2" else STACKS[name]()).eval()


def top(name: str = "llama", layers: tuple[int, ...] = (3,), *, base: PreTrainedModel | None = None, **changes):
    """Return a stack with LoRA in `layers`, moved off zero."""
    base = base if base is not None else stack(name)
    torch.manual_seed(1)
    targets = {"target_modules": TARGETS.get(name, ["q_proj", "v_proj"]), "fan_in_fan_out": name == "gpt2"}
    model: PeftModel = get_peft_model(base, LoraConfig(layers_to_transform=list(layers), **(targets | changes)))
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.05)
    return model
