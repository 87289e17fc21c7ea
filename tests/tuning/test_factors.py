"""The exact factors of every adapter that has some, and a reason for every adapter that has none."""

from __future__ import annotations

import warnings

import pytest
import torch
from peft import (
    AdaLoraConfig,
    IA3Config,
    LNTuningConfig,
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    VeraConfig,
    get_peft_model,
)
from peft.tuners.lora.layer import Linear

from budwood.errors import NotSupportedError, UsageError
from budwood.tuning.factors import HasLoraFactors, LoraFactors, lora_factors
from tests import tiny
from tests.export.trained import lora, trained

MIXED = dict(
    r=4,
    lora_alpha=12,
    target_modules=["q_proj", "v_proj", "down_proj"],
    rank_pattern={"v_proj": 3, r"layers\.1\.mlp\.down_proj": 7},
    alpha_pattern={"down_proj": 5},
)


def largest_error(model: PeftModel, adapter: str = "default") -> float:
    """max |B A - ΔW| over all modules, ΔW as PEFT itself computes it."""
    errors = []
    for name, (a, b) in lora_factors(model, adapter).items():
        layer = model.get_base_model().get_submodule(name)
        delta = layer.get_delta_weight(adapter)
        errors.append((b @ a - (delta.T if layer.fan_in_fan_out else delta)).abs().max().item())
    return max(errors)


@pytest.mark.parametrize("rslora", [False, True])
def test_mixed_ranks_and_alphas_give_pefts_own_delta(rslora):
    model = trained(LoraConfig(**MIXED, use_rslora=rslora))
    assert largest_error(model) < 1e-6
    ranks = {name: a.shape[0] for name, (a, _) in lora_factors(model).items()}
    assert ranks["model.layers.0.self_attn.v_proj"] == 3
    assert ranks["model.layers.1.mlp.down_proj"] == 7
    assert len(ranks) == 6


def test_conv1d_factors_are_logical():
    model = trained(LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True), tiny.gpt2())
    assert largest_error(model) < 1e-6
    a, b = lora_factors(model)["transformer.h.0.attn.c_attn"]
    assert a.shape == (4, 32) and b.shape == (96, 4)


def test_factors_are_fp32_and_detached_also_from_a_bf16_model():
    model = trained(LoraConfig(r=4, target_modules=["q_proj"]), tiny.llama().bfloat16())
    a, b = lora_factors(model)["model.layers.0.self_attn.q_proj"]
    assert a.dtype == b.dtype == torch.float32 and not a.requires_grad and not b.requires_grad


def test_a_scale_set_at_run_time_is_in_b():
    model = trained(LoraConfig(r=4, target_modules=["q_proj"]))
    name = "model.layers.0.self_attn.q_proj"
    before = lora_factors(model)[name].B
    model.get_base_model().get_submodule(name).set_scale("default", 0.5)
    assert torch.allclose(lora_factors(model)[name].B, before * 0.5)


def test_merging_does_not_change_the_factors():
    model = trained(LoraConfig(r=4, target_modules=["q_proj"]))
    before = lora_factors(model)
    model.merge_adapter()
    after = lora_factors(model)
    assert all(torch.equal(before[name].B, after[name].B) for name in before)


def test_only_the_named_adapter_counts():
    model = trained(LoraConfig(r=4, target_modules=["q_proj"]))
    model.add_adapter("second", LoraConfig(r=2, target_modules=["v_proj"]))
    assert all(name.endswith("q_proj") for name in lora_factors(model))
    assert all(name.endswith("v_proj") for name in lora_factors(model, "second"))
    with pytest.raises(UsageError, match="second"):
        lora_factors(model, "secnd")


class OwnLayer(Linear):
    """Stands for our layers: a tuner layer that knows its factors."""

    reason = ""

    def lora_factors(self, adapter: str) -> LoraFactors:
        if self.reason:
            raise NotSupportedError(self.reason, action="do something else")
        return LoraFactors(A=torch.ones(1, 32), B=torch.zeros(32, 1))


def test_our_layers_are_asked_and_their_refusal_names_the_module(monkeypatch):
    model = trained(LoraConfig(r=4, target_modules=["q_proj"]))
    for layer in model.get_base_model().model.layers:
        layer.self_attn.q_proj.__class__ = OwnLayer
    assert isinstance(model.get_base_model().model.layers[0].self_attn.q_proj, HasLoraFactors)
    assert {a.shape[0] for a, _ in lora_factors(model).values()} == {1}
    monkeypatch.setattr(OwnLayer, "reason", "it edits biases")
    with pytest.raises(NotSupportedError, match=r"layers\.0\.self_attn\.q_proj: it edits biases") as refused:
        lora_factors(model)
    assert refused.value.action == "do something else"


REFUSED = {
    "dora": (lambda: lora(use_dora=True), "DoraLinearVariant"),
    "bias": (lambda: lora(bias="all"), "bias='all'"),
    "lora_bias": (lambda: lora(lora_bias=True), "lora_bias"),
    "embedding": (lambda: lora(target_modules=["embed_tokens"]), "embedding"),
    "modules_to_save": (lambda: lora(modules_to_save=["lm_head"]), "lm_head"),
    "tokens": (lambda: lora(trainable_token_indices=[1, 2]), "token embeddings"),
    "parameter": (lambda: lora(target_modules=[], target_parameters=["mlp.up_proj.weight"]), "parameter 'weight'"),
    "pissa": (lambda: lora(init_lora_weights="pissa"), "changed the base"),
    "olora": (lambda: lora(init_lora_weights="olora"), "changed the base"),
    "replication": (lambda: lora(layer_replication=[(0, 2), (0, 2)]), "layer_replication"),
    "adalora": (lambda: AdaLoraConfig(target_modules=["q_proj"], init_r=4, total_step=10), "SVDLinear"),
    "vera": (lambda: VeraConfig(r=4, target_modules=["q_proj"]), r"vera\.Linear"),
    "ia3": (lambda: IA3Config(target_modules=["q_proj"], feedforward_modules=[]), r"ia3\.Linear"),
    "norms": (lambda: LNTuningConfig(target_modules=["input_layernorm"]), "ln_tuning"),
    "prompt": (lambda: PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"), "input vectors"),
    "prefix": (lambda: PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"), "input vectors"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_lora_is_refused_with_the_reason_and_a_way_out(kind):
    config, reason = REFUSED[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT warns about several of these at attach
        model = get_peft_model(tiny.llama(), config())
    with pytest.raises(NotSupportedError, match=reason) as refused:
        lora_factors(model)
    assert "export --to merged" in refused.value.action or "PEFT folder" in refused.value.action
