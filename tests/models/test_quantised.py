"""Quantised bases: what loads, what is refused before anything is loaded, and gradients that stay right."""

from __future__ import annotations

import copy
import importlib.util

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from budwood import GiftConfig
from budwood.errors import ModelError, NotSupportedError
from budwood.models import empty_model, find_sites, load_base, locate
from budwood.models.quantisation import STORED_PACKAGES, SUFFIX_PACKAGES, is_quantised, stored_method
from budwood.models.quantised import weight_by_identity
from tests import tiny
from tests.models import quantised_folders as folders

IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])
QUERY = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("kind", folders.MAKERS)
def test_a_quantised_base_is_frozen_whole_and_the_same_each_time(kind, tmp_path):
    reference = folders.made(kind, tmp_path / "base")
    assert is_quantised(locate(reference))
    first, second = (load_base(reference, device="cpu", dtype="float32") for _ in range(2))
    assert not any(parameter.requires_grad for parameter in first.model.parameters())
    with torch.no_grad():
        logits, full = first.model(IDS).logits, folders.llama()(IDS).logits
        assert torch.equal(logits, second.model(IDS).logits)
    assert 0.8 < torch.cosine_similarity(logits.flatten(), full.flatten(), dim=0) < 1 - 1e-6  # rounded, not another
    names = [site.name for site in find_sites(first.model)]
    assert names == [site.name for site in find_sites(empty_model(locate(reference)))]


@pytest.mark.parametrize("kind", ["compressed-tensors", "auto-round"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_weights_become_the_dense_ones_they_stand_for(kind, dtype, tmp_path):
    model = load_base(folders.made(kind, tmp_path / "base"), device="cpu", dtype=dtype).model
    layers = folders.linear_layers(model)
    assert len(layers) == 14
    for name, layer in folders.linear_layers(folders.llama()).items():
        assert type(layers[name]) is nn.Linear and layers[name].weight.dtype == model.dtype
        wanted = folders.rounded_weight(layer.weight)
        # AutoRound's layers compute in 16 bits; the codes times a scale need more.
        torch.testing.assert_close(
            layers[name].weight.float(), wanted, rtol=2**-7 if dtype == "bfloat16" else 1e-3, atol=0
        )
    assert stored_method(model.config) is None
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.parametrize("kind", folders.MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_quantised_has_the_precision_that_was_asked_for(kind, dtype, tmp_path):
    model = load_base(folders.made(kind, tmp_path / "base"), device="cpu", dtype=dtype).model
    assert {model.dtype, model.model.norm.weight.dtype, model.get_input_embeddings().weight.dtype} == {dtype}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def absent(monkeypatch, *packages):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in packages else found(name))


@pytest.mark.parametrize("load", [lambda source: load_base(source, device="cpu"), empty_model], ids=["load", "plan"])
@pytest.mark.parametrize(("suffix", "package"), SUFFIX_PACKAGES.items())
def test_a_suffix_without_its_package_is_refused(load, suffix, package, tmp_path, monkeypatch):
    source = locate(f"{tiny.save(tiny.llama(), tmp_path)}+{suffix}")
    absent(monkeypatch, package)
    with pytest.raises(
        ModelError, match=rf"(?s)'\+{suffix}' needs {package}.*budwood\[quantised\].*drop '\+{suffix}'"
    ):
        load(source)


@pytest.mark.parametrize("load", [lambda source: load_base(source, device="cpu"), empty_model], ids=["load", "plan"])
@pytest.mark.parametrize(("method", "packages"), STORED_PACKAGES.items())
def test_stored_weights_without_their_package_are_refused(load, method, packages, tmp_path, monkeypatch):
    tiny.save(tiny.llama(), tmp_path)
    folders.change_config(tmp_path, quantization_config={"quant_method": method})
    absent(monkeypatch, *packages)
    names = " and ".join(packages).replace("_", "-")
    install = (
        rf"pip install {' '.join(packages)}" if "gptqmodel" in packages else r"pip install 'budwood\[quantised\]'"
    )
    with pytest.raises(ModelError, match=rf"(?s)stored as {method}, needs {names}.*{install}"):
        load(locate(str(tmp_path)))


@pytest.mark.parametrize("load", [lambda source: load_base(source, device="cpu"), empty_model], ids=["load", "plan"])
def test_what_is_quantised_is_not_quantised_again(load, tmp_path):
    tiny.save(tiny.llama(), tmp_path)
    folders.change_config(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelError, match=r"quantised already \(gptq\)"):
        load(locate(f"{tmp_path}+nf4"))


def gradient(model: nn.Module) -> torch.Tensor:
    model.train().zero_grad()
    model(input_ids=IDS, labels=IDS).loss.backward()
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters() if p.requires_grad]
    return torch.cat([part.flatten().float() for part in parts])


def evaluated(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model.eval()(input_ids=IDS)
    return model


def with_adapter(model: nn.Module, config) -> nn.Module:
    torch.manual_seed(0)
    return get_peft_model(model, copy.deepcopy(config))


def needs_the_trap() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    if not functional.has_avx512bf16():
        pytest.skip("bitsandbytes repacks 4-bit weights on CPUs with AVX512-BF16 only")


GIFT = GiftConfig(r=4, target_modules=["q_proj", "down_proj"], init_weights=False)
LORA = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)


@pytest.mark.parametrize("config", [GIFT, LORA], ids=["gift", "lora"])
@pytest.mark.parametrize("suffix", ["nf4", "fp4"])
def test_training_after_an_evaluation_has_the_right_gradient(suffix, config, tmp_path):
    needs_the_trap()
    reference = folders.made(f"+{suffix}", tmp_path / "base")
    model = evaluated(with_adapter(load_base(reference, device="cpu", dtype="float32").model, config))
    wanted = gradient(with_adapter(folders.twin(reference), config))
    found = gradient(model)
    assert torch.cosine_similarity(found, wanted, dim=0) > 0.999
    assert 0.99 < found.norm() / wanted.norm() < 1.01


def load_without_budwood(folder: str) -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        device_map={"": "cpu"},
        quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    )


@pytest.mark.filterwarnings("ignore:bitsandbytes..gemv_4bit. an autograd kernel:UserWarning")
def test_attaching_gift_guards_a_model_that_was_loaded_elsewhere(tmp_path):
    needs_the_trap()
    folder = folders.plain(tmp_path / "base")
    broken = gradient(with_adapter(evaluated(load_without_budwood(folder)), LORA))
    wanted = gradient(with_adapter(load_without_budwood(folder), LORA))
    assert torch.cosine_similarity(broken, wanted, dim=0) < 0.9  # if this fails, the guard can go
    guarded = gradient(evaluated(with_adapter(load_without_budwood(folder), GIFT)))
    right = gradient(with_adapter(load_without_budwood(folder), GIFT))
    assert torch.cosine_similarity(guarded, right, dim=0) > 0.999
    with pytest.raises(NotSupportedError, match="has repacked the weight of"):
        with_adapter(evaluated(load_without_budwood(folder)), GIFT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unit_vectors_give_the_weight_also_beside_a_large_bias(dtype):
    torch.manual_seed(0)
    layer = nn.Linear(2050, 3, dtype=dtype)
    nn.init.constant_(layer.bias, 300.0)
    assert torch.equal(weight_by_identity(layer, 2050), layer.weight.float())
    assert torch.equal(layer.bias, torch.full((3,), 300.0, dtype=dtype))
