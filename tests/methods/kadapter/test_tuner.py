"""K-Adapter: the side path against its equations in float64, and where it can be. The contract tests hold the rest."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel, get_peft_model
from torch.nn import functional as F

from budwood import peft
from budwood.errors import ConfigError, NotSupportedError
from budwood.methods.kadapter.config import last_norm, read_layers
from budwood.tuning.attach import adapted_layers, attach, count_parameters
from budwood.tuning.protocol import Tuner
from budwood.tuning.registry import find_tuner
from tests import tiny

IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])


@pytest.fixture
def tuner() -> Tuner:
    peft.register()
    return find_tuner("kadapter")


@torch.no_grad()
def stirred(model: PeftModel) -> PeftModel:
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)
    return model


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_the_logits_are_those_of_the_equations(tuner, make):
    base = make().double()
    with torch.no_grad():
        states = base(input_ids=IDS, output_hidden_states=True).hidden_states
    outputs = [states[1], *_last_output(base)]  # of both layers, before the norm
    model = stirred(attach(base, tuner, tuner.settings(width=7), seed=0).double())
    side = torch.zeros_like(outputs[0])
    path = base.get_submodule(last_norm(base)).kadapter_blocks["default"]
    assert list(path) == ["0", "1"]
    for block, output in zip(path.values(), outputs, strict=True):
        read = F.layer_norm(output + side, (32,))
        inner = F.gelu(read @ block.down.weight.T + block.down.bias)
        side = side + inner @ block.up.weight.T + block.up.bias
    wanted = base.get_output_embeddings()(states[-1] + side)
    torch.testing.assert_close(model(input_ids=IDS).logits, wanted, rtol=1e-5, atol=1e-6)


def _last_output(base):
    """Return what the last layer hands on, which transformers shows behind the norm only."""
    found = []
    norm = base.get_submodule(last_norm(base))
    hook = norm.register_forward_pre_hook(lambda module, args: found.append(args[0]))
    with torch.no_grad():
        base(input_ids=IDS)
    hook.remove()
    return found


def test_it_has_as_many_numbers_as_it_says(tuner):
    model = attach(tiny.llama(num_hidden_layers=5), tuner, tuner.settings(width=7), seed=0)
    assert count_parameters(model) == 3 * (7 * (2 * 32 + 1) + 32)  # layers 0, 2 and 4
    assert adapted_layers(model) == {"model.norm"}


def test_no_gradient_goes_through_the_base(tuner):
    model = stirred(attach(tiny.llama(), tuner, tuner.settings(), seed=0))
    entered = []
    model.get_base_model().model.layers[1].register_forward_hook(lambda module, args, output: entered.append(output))
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert all(not (one if torch.is_tensor(one) else one[0]).requires_grad for one in entered)
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_two_adapters_that_read_other_layers_and_none_after_unloading(tuner):
    base = tiny.llama(num_hidden_layers=3)
    plain = base(input_ids=IDS).logits
    model = stirred(attach(base, tuner, tuner.settings(reads=[0]), seed=0))
    first = model(input_ids=IDS).logits
    model.add_adapter("second", tuner.make_config(tuner.settings(reads=[1, 2]), base))
    model.set_adapter("second")
    assert torch.equal(model(input_ids=IDS).logits, plain)
    model.set_adapter("default")
    assert torch.equal(model(input_ids=IDS).logits, first)
    bare = model.unload()
    assert torch.equal(bare(input_ids=IDS).logits, plain)
    assert not any(layer._forward_hooks for layer in bare.model.layers)


def test_nothing_is_kept_after_a_pass(tuner):
    model = attach(tiny.llama(), tuner, tuner.settings(), seed=0)
    model(input_ids=IDS)
    assert model.get_base_model().model.norm._kept == {}
    with model.disable_adapter():
        model(input_ids=IDS)
    assert model.get_base_model().model.norm._kept == {}


def test_merging_is_refused_with_the_reason(tuner):
    model = attach(tiny.llama(), tuner, tuner.settings(), seed=0)
    with pytest.raises(NotSupportedError, match="cannot be merged"):
        model.merge_adapter()
    with pytest.raises(NotSupportedError, match="cannot be merged"):
        model.merge_and_unload()


def test_layers_and_norms_that_are_not_there_are_refused(tuner):
    from budwood.methods.kadapter.config import KAdapterConfig

    assert read_layers(tiny.llama(num_hidden_layers=7), None) == [0, 3, 6]
    assert last_norm(tiny.llama()) == "model.norm" and last_norm(tiny.gpt2()) == "transformer.ln_f"
    with pytest.raises(ConfigError, match="the layer 2 of 2"):
        read_layers(tiny.llama(), [0, 2])
    for values in ({"width": 0, "reads": [0]}, {"reads": []}, {"reads": [1, 0]}):
        with pytest.raises(ConfigError):
            KAdapterConfig(**values)
    with pytest.raises(ConfigError, match="no target_modules"):
        get_peft_model(tiny.llama(), KAdapterConfig(reads=[0]))
    headless = tiny.llama()
    headless.model.norm = torch.nn.Identity()
    with pytest.raises(NotSupportedError, match="0 norms beside its layers"):
        last_norm(headless)
