"""Writes a tiny Llama as a GGUF file the way llama.cpp's converter does."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers
from transformers import LlamaForCausalLM

from tests import tiny

SPECIAL = ["<|im_end|>", "<pad>", "<|im_start|>", "<|eot|>"]
MERGES = ["Ġ Ġ", "h e", "l l"]
WORDS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL, "ĠĠ", "he", "ll"]

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def llama(seed: int = 0) -> LlamaForCausalLM:
    """The tiny Llama over `WORDS`."""
    return tiny.llama(seed, vocab_size=len(WORDS))


def write(
    path: Path,
    model: LlamaForCausalLM,
    *,
    architecture: str = "llama",
    pre: str = "smollm",
    quantised: bool = False,
    leave_out: str = "nothing",
    extra: dict[str, int] | None = None,
) -> Path:
    """Write `model` to `path`.

    Args:
        path: the file.
        model: made by `llama`.
        architecture: `general.architecture`.
        pre: `tokenizer.ggml.pre`.
        quantised: whether matrices whose rows have a multiple of 32 numbers are stored as Q8_0.
        leave_out: tensors whose name has this in it are not written.
        extra: more numbers for the head.
    """
    writer = gguf.GGUFWriter(path, architecture)
    config = model.config
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, pre)
    for key, value in (extra or {}).items():
        writer.add_uint32(key, value)
    for name, weight in model.state_dict().items():
        tensor = _permuted(name, weight.numpy(), config)
        if (written := _name(name)) is None or leave_out in written:
            continue
        if quantised and tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(written, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(written, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, pre: str) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(WORDS)
    writer.add_token_types([3 if word in SPECIAL else 1 for word in WORDS])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(WORDS.index("<|im_end|>"))
    writer.add_bos_token_id(WORDS.index("<|im_start|>"))
    writer.add_pad_token_id(WORDS.index("<pad>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(tiny.CHATML)


def _name(name: str) -> str | None:
    """The tensor's name in GGUF; None for the tied output head."""
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if not name.startswith("model.layers."):
        return whole.get(name)
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_NAMES[rest.removesuffix('.weight')]}.weight"


def _permuted(name: str, weight: np.ndarray, config) -> np.ndarray:
    """llama.cpp pairs the halves of a head row by row in q and k."""
    heads = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
    for end, count in heads.items():
        if name.endswith(end):
            rows = weight.reshape(count, 2, weight.shape[0] // count // 2, weight.shape[1])
            return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(weight.shape))
    return weight
