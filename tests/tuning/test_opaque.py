"""A weight that cannot be read, multiplied with by running its layer."""

from __future__ import annotations

import pytest
import torch
from peft import get_peft_model
from peft.utils.quantization_utils import ForwardOnlyQuantizationBackend
from torch import nn

import tests.tiny as tiny
from budwood import GiftConfig
from budwood.errors import NotSupportedError
from budwood.tuning import linear
from budwood.tuning.factors import lora_factors
from budwood.tuning.opaque import OpaqueWeight
from budwood.tuning.shared_layer import SharedLayer

QUERY = "model.layers.0.self_attn.q_proj"


class Packed(nn.Module):
    """Stands for a quantised layer: integer codes and a scale a row, no attribute `weight`."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("codes", torch.randint(-8, 8, (out_features, in_features), dtype=torch.int8))
        self.register_buffer("scales", 0.05 * torch.rand(out_features, 1))
        self.register_buffer("bias", torch.randn(out_features))

    def hidden_weight(self) -> torch.Tensor:
        return self.codes * self.scales

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.hidden_weight().T + self.bias


def made(kind: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.Linear(6, 5) if kind == "linear" else Packed(6, 5)
    return layer, layer.weight.detach() if kind == "linear" else layer.hidden_weight()


@pytest.mark.parametrize("kind", ["linear", "packed"])
def test_products_equal_those_of_the_weight(kind: str):
    layer, weight = made(kind)
    opaque = OpaqueWeight(layer, 6)
    right, left = torch.randn(6, 3), torch.randn(2, 5)
    torch.testing.assert_close(opaque @ right, weight @ right)
    with torch.no_grad():  # the gradient that is needed does not depend on the caller's mode
        torch.testing.assert_close(left @ opaque, left @ weight)
    assert all(parameter.grad is None for parameter in layer.parameters())


def in_16_bits_with_a_large_bias() -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(6, 5, dtype=torch.bfloat16)
    nn.init.constant_(layer.bias, 300.0)
    return layer


def test_a_large_bias_leaves_no_rounding_in_16_bits():
    layer = in_16_bits_with_a_large_bias()
    assert torch.equal(OpaqueWeight(layer, 6) @ torch.eye(6), layer.weight.float())
    assert torch.equal(torch.eye(5) @ OpaqueWeight(layer, 6), layer.weight.float())
    assert torch.equal(layer.bias, torch.full((5,), 300.0, dtype=torch.bfloat16))


def test_the_bias_is_put_back_after_an_error():
    layer = in_16_bits_with_a_large_bias()
    with pytest.raises(RuntimeError):
        OpaqueWeight(layer, 6) @ torch.eye(7)
    assert torch.equal(layer.bias, torch.full((5,), 300.0, dtype=torch.bfloat16))


@pytest.mark.filterwarnings("ignore:Unsupported layer type:UserWarning")  # PEFT's list of layers lacks ours
def test_the_weight_of_a_layer_that_hides_it(monkeypatch):
    layer, weight = made("packed")
    monkeypatch.setattr(linear, "_backend", lambda module: ForwardOnlyQuantizationBackend("gptq"))
    torch.testing.assert_close(linear.effective_weight(layer), weight)


def test_a_layer_without_a_gradient_is_refused():
    class Blocked(Packed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).detach()

    with pytest.raises(NotSupportedError, match="neither gives its weight back nor a gradient"):
        torch.randn(2, 5) @ OpaqueWeight(Blocked(6, 5), 6)


@pytest.mark.parametrize("side", ["input", "output", "both"])
def test_factors_of_a_hidden_weight_equal_those_of_a_visible_one(side: str):
    torch.manual_seed(0)
    model = get_peft_model(
        tiny.llama(), GiftConfig(r=4, target_modules=["q_proj", "down_proj"], side=side, init_weights=False)
    )
    wanted = lora_factors(model)
    delta = model.get_base_model().get_submodule(QUERY).get_delta_weight("default")
    for layer in model.modules():
        if isinstance(layer, SharedLayer):
            layer.quantization_backend = ForwardOnlyQuantizationBackend("gptq")
    for name, factors in lora_factors(model).items():
        torch.testing.assert_close(factors.A, wanted[name].A, rtol=0, atol=1e-6)
        torch.testing.assert_close(factors.B, wanted[name].B, rtol=0, atol=1e-6)
    torch.testing.assert_close(model.get_base_model().get_submodule(QUERY).get_delta_weight("default"), delta)
