"""llama.cpp's names and order of rows."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import BloomConfig, BloomForCausalLM, T5Config, T5ForConditionalGeneration
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS

from budwood.errors import NotSupportedError
from budwood.export.gguf_names import LAYOUTS, GgufNames
from tests import tiny
from tests.export import bases

NAMES = GgufNames(tiny.llama())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q.weight"),
        ("model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight"),
        ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
        ("lm_head.weight", "output.weight"),
    ],
)
def test_names_are_those_of_the_gguf_package(name, expected):
    assert NAMES.tensor(name) == expected


def test_the_order_is_the_one_that_transformers_undoes():
    config, rows = tiny.llama().config.to_dict(), np.random.default_rng(0).normal(size=(32, 5))
    undo = TENSOR_PROCESSORS["llama"](config=config)
    for name, heads in (("blk.0.attn_q.weight", 4), ("blk.1.attn_k.weight", 2)):
        own = rows[: 8 * heads]
        ordered = NAMES.to_gguf(name, own)
        assert not np.array_equal(ordered, own)
        undone = undo.process(ordered.copy(), name).weights
        assert np.array_equal(undone, own) and np.array_equal(NAMES.from_gguf(name, ordered), own)


def test_the_order_by_hand():
    """One head of four rows: first half 0 1, second half 2 3; llama.cpp pairs 0 with 2 and 1 with 3."""
    names = GgufNames(tiny.llama(num_attention_heads=1, num_key_value_heads=1, hidden_size=4))
    assert names.to_gguf("blk.0.attn_q.weight", np.arange(4)).tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize("name", ["blk.0.attn_v.weight", "blk.0.attn_output.weight", "blk.0.attn_q_norm.weight"])
def test_other_weights_keep_their_order(name):
    rows = np.arange(32)
    assert NAMES.to_gguf(name, rows) is rows and NAMES.from_gguf(name, rows) is rows


def test_qwen_keeps_the_order_of_q():
    rows = np.arange(32)
    assert GgufNames(bases.qwen2()).to_gguf("blk.0.attn_q.weight", rows) is rows


def test_every_class_of_the_table_is_one_of_transformers():
    import transformers

    assert all(hasattr(transformers, name) for name in LAYOUTS)


def test_other_architectures_are_refused_with_the_reason():
    bloom = BloomForCausalLM(BloomConfig(vocab_size=9, hidden_size=8, n_layer=1, n_head=2))
    with pytest.raises(NotSupportedError, match="reorders its joined q, k and v"):
        GgufNames(bloom)
    t5 = T5ForConditionalGeneration(T5Config(d_model=8, d_ff=8, num_layers=1, num_heads=2, d_kv=4, vocab_size=9))
    with pytest.raises(NotSupportedError, match="T5ForConditionalGeneration"):
        GgufNames(t5)


def test_a_weight_that_llama_cpp_has_not_is_refused():
    with pytest.raises(NotSupportedError, match=r"mlp\.other"):
        NAMES.tensor("model.layers.0.mlp.other.weight")
