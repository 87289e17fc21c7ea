"""Tuners on quantised bases: right gradients, quantised weights untouched, exact factors, save and load."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from peft.utils.quantization_utils import ForwardOnlyQuantizationBackend
from torch import nn

from budwood import GiftConfig, peft
from budwood.methods.shared_lora.config import SharedLoraConfig
from budwood.models import load_base
from budwood.tuning.factors import LoraFactors, lora_factors
from budwood.tuning.linear import effective_weight
from budwood.tuning.shared_layer import SharedLayer
from tests.models import quantised_folders as folders

peft.register()
IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])
TARGETS = ["q_proj", "k_proj", "v_proj", "up_proj", "down_proj"]
CONFIGS: dict[str, PeftConfig] = {
    "gift": GiftConfig(r=4, target_modules=TARGETS, init_weights=False),
    "gift-both": GiftConfig(r=4, target_modules=TARGETS, init_weights=False, side="both"),
    "shared_lora": SharedLoraConfig(r=4, target_modules=TARGETS),
    "lora": LoraConfig(r=4, target_modules=TARGETS),
}
OURS = [name for name in CONFIGS if name != "lora"]


def adapted(base: nn.Module, tuner: str) -> PeftModel:
    """The base with the tuner, all of its parameters random."""
    model = get_peft_model(base, copy.deepcopy(CONFIGS[tuner]))
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.05)
    return model.eval()


def gradient(model: nn.Module) -> torch.Tensor:
    model.train().zero_grad()
    model(input_ids=IDS, labels=IDS).loss.backward()
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.requires_grad])


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def frozen_bytes(model: nn.Module) -> dict[str, bytes]:
    """Every stored byte of the base: codes, scales and what is not quantised."""
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    return {name: part for name, value in state.items() for part in [_bytes(value)]}


def _bytes(value: torch.Tensor) -> bytes:
    if hasattr(value, "tensor_data_names"):  # a torchao tensor: codes and scales
        return b"".join(_bytes(getattr(value, name)) for name in value.tensor_data_names)
    return value.detach().contiguous().view(torch.uint8).numpy().tobytes()


def test_the_bytes_of_a_base_show_a_change_of_one_code(reference):
    plain = base(reference)
    before = frozen_bytes(plain)
    weight = plain.model.layers[0].self_attn.q_proj.weight
    codes = getattr(weight, "qdata", weight.data)
    codes.view(-1)[0] += 1
    assert frozen_bytes(plain) != before


@pytest.fixture(scope="module", params=folders.MAKERS)
def reference(request, tmp_path_factory) -> str:
    return folders.made(request.param, tmp_path_factory.mktemp("quantised") / "base")


def base(reference: str) -> nn.Module:
    return load_base(reference, device="cpu", dtype="float32").model


@pytest.mark.parametrize("tuner", CONFIGS)
def test_gradients_are_those_of_the_dense_twin(reference, tuner):
    model = adapted(base(reference), tuner)
    logits(model)  # an evaluation pass before training, as every run has
    found, wanted = gradient(model), gradient(adapted(folders.twin(reference), tuner))
    assert torch.cosine_similarity(found, wanted, dim=0) > 0.999
    assert 0.98 < found.norm() / wanted.norm() < 1.02


@pytest.mark.parametrize("tuner", CONFIGS)
def test_training_leaves_the_quantised_weights_byte_for_byte(reference, tuner):
    plain = base(reference)
    before = frozen_bytes(plain)
    model = adapted(plain, tuner)
    answers = logits(model)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(2):
        gradient(model)
        optimiser.step()
    assert not torch.equal(logits(model.eval()), answers)
    assert frozen_bytes(model.unload()) == before


@pytest.mark.parametrize("tuner", CONFIGS)
def test_a_saved_adapter_loads_onto_the_same_quantised_base(reference, tuner, tmp_path):
    model = adapted(base(reference), tuner)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(PeftModel.from_pretrained(base(reference), tmp_path).eval()), logits(model))


@pytest.mark.parametrize("tuner", OURS)
def test_exported_factors_answer_as_the_adapter_on_the_quantised_base(reference, tuner):
    model = adapted(base(reference), tuner)
    exported = as_lora(base(reference), lora_factors(model))
    with torch.no_grad():  # in training mode int8 layers do not round their inputs; there is no dropout here
        found, wanted = (m.train()(input_ids=IDS).logits for m in (exported, model))
        plain = base(reference).train()(input_ids=IDS).logits
    effect = (wanted - plain).abs().max()
    assert effect > 0.1
    assert (found - wanted).abs().max() < 2e-2 * effect  # int8 multiplies in fp16; the others are far closer


@pytest.mark.parametrize("tuner", OURS)
def test_factors_need_no_weight(reference, tuner):
    """The factors of layers that are run instead of read equal those of the dense twin."""
    model = adapted(base(reference).train(), tuner).train()
    for layer in model.modules():
        if isinstance(layer, SharedLayer) and layer.quantization_backend is not None:
            layer.quantization_backend = ForwardOnlyQuantizationBackend("opaque")
    wanted = lora_factors(adapted(folders.twin(reference), tuner))
    for name, (a, b) in lora_factors(model).items():
        expected = wanted[name]
        torch.testing.assert_close(
            b @ a, expected.B @ expected.A, rtol=0, atol=5e-3 * (expected.B @ expected.A).abs().max().item()
        )


def as_lora(model: nn.Module, factors: dict[str, LoraFactors]) -> PeftModel:
    """PEFT's own LoRA with given factors."""
    rank = max(pair.A.shape[0] for pair in factors.values())
    made = get_peft_model(model, LoraConfig(r=rank, lora_alpha=rank, target_modules=TARGETS))
    with torch.no_grad():
        for name, (a, b) in factors.items():
            layer = made.get_base_model().get_submodule(name)
            layer.lora_A["default"].weight.zero_()[: len(a)] = a
            layer.lora_B["default"].weight.zero_()[:, : len(a)] = b
    return made.eval()


def test_the_weight_that_a_layer_stands_for(reference):
    model, twin = base(reference), dict(folders.twin(reference).named_modules())
    for name, layer in folders.linear_layers(model).items():
        weight = effective_weight(layer)
        if weight is None:
            assert type(layer) is nn.Linear
            weight = layer.weight
        torch.testing.assert_close(weight, twin[name].weight, rtol=2e-3, atol=1e-6)
