"""Shared LoRA: its equation in float64, its size, and what a kind is."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import nn

import tests.tiny as tiny
from budwood import peft
from budwood.errors import ConfigError
from budwood.methods.shared_lora import SharedLoraSettings, make_config
from budwood.methods.shared_lora.config import SharedLoraConfig
from budwood.methods.shared_lora.tuner import SharedLoraLayer
from budwood.tuning.attach import count_parameters

IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapted(base: nn.Module | None = None, **settings: object) -> PeftModel:
    peft.register()
    config = SharedLoraConfig(**({"r": 4, "target_modules": SEVEN, "task_type": "CAUSAL_LM"} | settings))
    model = get_peft_model(base if base is not None else tiny.llama(), config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".shared_lora_pair." in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def test_the_equation_in_float64():
    """ΔW_l = (alpha / r) B A for every layer: the output and the gradients of a model with Ŵ written out."""
    model = adapted(lora_alpha=6).double()
    loss = model(input_ids=IDS, labels=IDS).loss
    loss.backward()
    pairs = {
        name.rpartition(".")[2]: layer.shared_lora_pair["default"]
        for name, layer in model.named_modules()
        if isinstance(layer, SharedLoraLayer)
    }
    wanted = {kind: (pair.A.grad.clone(), pair.B.grad.clone()) for kind, pair in pairs.items()}
    model.zero_grad()
    plain = tiny.llama().double()
    weights = {}
    for name, module in plain.named_modules():
        if (kind := name.rpartition(".")[2]) in SEVEN:
            weights[f"{name}.weight"] = module.weight + 6 / 4 * pairs[kind].B @ pairs[kind].A
    naive = torch.func.functional_call(plain, weights, (), {"input_ids": IDS, "labels": IDS}).loss
    naive.backward()
    torch.testing.assert_close(loss, naive, rtol=0, atol=1e-12)
    for kind, pair in pairs.items():
        torch.testing.assert_close(pair.A.grad, wanted[kind][0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(pair.B.grad, wanted[kind][1], rtol=1e-9, atol=1e-12)


def test_the_size_in_the_readme():
    with torch.device("meta"):
        base = tiny.llama(
            hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3,
        )  # fmt: skip
    peft.register()
    model = get_peft_model(base, make_config(SharedLoraSettings(), base))
    assert model.num_parameters(only_trainable=True) == 325_632


@pytest.mark.parametrize("layers", [2, 5])
def test_saved_once_per_kind(tmp_path, layers: int):
    adapted(tiny.llama(num_hidden_layers=layers)).save_pretrained(tmp_path, save_embedding_layers=False)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    assert len(stored) == 2 * len(SEVEN)
    assert stored["base_model.shared_lora_shared.k_proj-parallel-32x16.B"].shape == (16, 4)


class Uneven(nn.Module):
    """Two layers of one kind that read the same width and write different ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"proj": nn.Linear(8, width)}) for width in (8, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer["proj"](x) for layer in self.layers], -1)


def test_layers_of_one_kind_and_two_shapes_have_two_pairs():
    model = adapted(Uneven(), target_modules=["proj"], task_type=None)
    assert model(torch.ones(1, 8)).shape == (1, 20)
    assert count_parameters(model) == 4 * (8 + 8) + 4 * (8 + 12)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"r": 0}, "r=0"),
        ({"r": 17}, "rank 17 is larger than the width 16 of .*k_proj"),
        ({"lora_dropout": 1.0}, "lora_dropout"),
        ({"bias": "gift_only"}, "bias"),
    ],
)
def test_bad_settings_are_refused(settings, text):
    with pytest.raises(ConfigError, match=text):
        adapted(**settings)
