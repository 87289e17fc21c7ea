"""Attention in training: eager only on a CPU in bf16 with few pairs of tokens, the same gradients, undone."""

from __future__ import annotations

import pytest
import torch

from budwood.training.attention import KEPT_BYTES_MAX, fastest_attention, kept_bytes
from tests import tiny

CPU = torch.device("cpu")


@pytest.fixture
def model():
    model = tiny.llama()
    model.set_attn_implementation("sdpa")
    return model


def test_only_where_it_is_faster(model):
    config = model.config
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    assert kept_bytes(model, 4, 32, CPU, torch.bfloat16) == 4 * heads * layers * 32**2 * 7
    assert kept_bytes(model, 4, 32, CPU, torch.float32) == 0
    assert kept_bytes(model, 4, 32, torch.device("cuda"), torch.bfloat16) == 0
    longest = int((KEPT_BYTES_MAX / (7 * heads * layers)) ** 0.5)
    assert kept_bytes(model, 1, longest, CPU, torch.bfloat16) > 0
    assert kept_bytes(model, 1, longest + 1, CPU, torch.bfloat16) == 0
    model.set_attn_implementation("eager")
    assert kept_bytes(model, 4, 32, CPU, torch.bfloat16) == 0


@pytest.mark.parametrize(("dtype", "inside"), [(torch.bfloat16, "eager"), (torch.float32, "sdpa")])
def test_it_is_undone(model, dtype, inside):
    model.to(dtype)
    with pytest.raises(KeyboardInterrupt), fastest_attention(model, 2, 16):
        assert model.config._attn_implementation == inside
        raise KeyboardInterrupt
    assert model.config._attn_implementation == "sdpa"


def test_gradients_agree(model):
    """Both are as near to those in fp32 as bf16 allows."""
    ids, padded = torch.randint(3, 30, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    padded[1, 8:] = 0

    def gradient(of: torch.nn.Module) -> torch.Tensor:
        of.zero_grad()
        of(input_ids=ids, attention_mask=padded, labels=ids).loss.backward()
        return of.get_input_embeddings().weight.grad.float().flatten()

    exact = gradient(model).clone()
    model.to(torch.bfloat16)
    sdpa = gradient(model).clone()
    with fastest_attention(model, 2, 12):
        eager = gradient(model)
    for one in (sdpa, eager):
        assert torch.cosine_similarity(one, exact, dim=0) > 0.99
