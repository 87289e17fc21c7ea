"""GIFT as a PEFT tuner: the numbered properties, on tiny Llama and GPT-2 models."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from functools import partial

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import PeftType
from peft.utils.quantization_utils import ForwardOnlyQuantizationBackend
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tests.tiny as tiny
from budwood import GiftConfig
from budwood.errors import AdapterError, NotSupportedError
from budwood.methods.gift.tuner import GiftLayer
from budwood.tuning.factors import lora_factors

IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])
QKVO = ["q_proj", "k_proj", "v_proj", "o_proj"]
SEVEN = [*QKVO, "gate_proj", "up_proj", "down_proj"]
SIDES = dict.fromkeys(SEVEN[:-1], "input") | {"down_proj": "output"}
GPT2 = ["c_attn", "c_proj", "c_fc"]


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def randomise(model: nn.Module, seed: int = 1, scale: float = 0.08) -> nn.Module:
    """Give every adapter parameter a random value, so that the adapter does something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".gift_" in name:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return model


def gift(base: nn.Module | None = None, **settings: object) -> PeftModel:
    settings = {"r": 4, "target_modules": SEVEN, "side": SIDES, "task_type": "CAUSAL_LM"} | settings
    return get_peft_model(base if base is not None else tiny.llama(), GiftConfig(**settings)).eval()


def trained(base: nn.Module | None = None, **settings: object) -> PeftModel:
    return randomise(gift(base, **settings))


VARIANTS = {
    "input": {"side": "input"},
    "output": {"side": "output"},
    "both": {"side": "both"},
    "mixed": {"side": SIDES},
    "alpha": {"side": SIDES, "gift_alpha": 8},
    "block": {"side": SIDES, "share": [["q_proj", "k_proj", "v_proj"], ["up_proj", "gate_proj"]]},
    "depth": {"side": SIDES, "share_depth": 1},
    "none": {"side": "both", "share": "none"},
    "all": {"side": "input", "share": "all", "target_modules": SEVEN[:-1]},
    "ranks": {"side": SIDES, "group_ranks": {"q_proj": 2, "down_proj": 8}},
}


@pytest.fixture(params=VARIANTS, ids=str)
def variant(request: pytest.FixtureRequest) -> dict[str, object]:
    return VARIANTS[request.param]


# --- identity, training ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", ["psi_zero", "phi_zero"])
def test_attaching_changes_nothing_and_one_step_moves_one_factor(init: str):
    plain = logits(tiny.llama())
    model = gift(init_weights=init)
    assert torch.equal(logits(model), plain)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    model.train()
    model(input_ids=IDS, labels=IDS).loss.backward()
    optimiser.step()
    moved = {
        name.rpartition(".")[2] for name, p in model.named_parameters() if name in before and (p != before[name]).any()
    }
    assert moved == {"psi" if init == "psi_zero" else "phi"}


def test_base_weights_get_no_gradient_and_stay_the_same():
    model = gift()
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimiser.step()
    for name, parameter in model.named_parameters():
        if name in frozen:
            assert parameter.grad is None
            assert torch.equal(parameter, frozen[name])
        else:
            assert parameter.grad is not None and ".gift_" in name


def test_the_gradient_equals_that_of_dense_deltas(variant):
    """Activation mode against explicit Ŵ built from the same φ, ψ: same loss, same gradients."""
    model = trained(**variant).double()
    loss = model(input_ids=IDS, labels=IDS).loss
    loss.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    dense = copy.deepcopy(model)
    dense.zero_grad()
    weights = {}
    for name, layer in dense.get_base_model().named_modules():
        if isinstance(layer, GiftLayer):
            weight, scale = layer.get_base_layer().weight, layer.scale["default"]
            edited = weight
            if "default" in layer.gift_in:
                edited = edited + scale * edited @ layer.gift_in["default"].phi @ layer.gift_in["default"].psi
            if "default" in layer.gift_out:
                edited = edited + scale * layer.gift_out["default"].phi @ (layer.gift_out["default"].psi @ edited)
            weights[f"{name}.weight"] = edited
    other = torch.func.functional_call(tiny.llama().double(), weights, (), {"input_ids": IDS, "labels": IDS}).loss
    other.backward()
    torch.testing.assert_close(loss, other)
    for name, parameter in dense.named_parameters():
        if name in wanted:
            torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-9, atol=1e-12)


def test_gradient_checkpointing_gives_the_same_gradients():
    plain, checkpointed = trained(), tiny.checkpointed(trained())
    for model in (plain, checkpointed):
        model.train()
        model(input_ids=IDS, labels=IDS).loss.backward()
    for (name, a), (_, b) in zip(plain.named_parameters(), checkpointed.named_parameters()):
        if a.requires_grad:
            assert a.grad.abs().sum() > 0, name
            torch.testing.assert_close(a.grad, b.grad)


def test_dropout_acts_in_training_only():
    model = trained(gift_dropout=0.5)
    assert torch.equal(logits(model), logits(model))
    model.train()
    assert not torch.equal(logits(model), logits(model))


def test_same_seed_same_bits():
    def made(seed: int) -> dict[str, torch.Tensor]:
        base = tiny.llama()
        torch.manual_seed(seed)
        model = get_peft_model(base, GiftConfig(r=4, target_modules=QKVO))
        return {name: p for name, p in model.named_parameters() if ".gift_" in name}

    first, second, other = made(7), made(7), made(8)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


# --- parameters -----------------------------------------------------------------------------------------------------


def meta_llama(hidden: int, ff: int, layers: int, heads: int, kv: int) -> nn.Module:
    with torch.device("meta"):
        return tiny.llama(
            hidden_size=hidden, intermediate_size=ff, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=kv,
        )  # fmt: skip


BLOCK = {"share": [["q_proj", "k_proj", "v_proj"], ["up_proj", "gate_proj"]],
         "side": {**dict.fromkeys(["q_proj", "k_proj", "v_proj", "up_proj", "gate_proj"], "input"),
                  "o_proj": "output", "down_proj": "output"}}  # fmt: skip
FF = ["gate_proj", "up_proj", "down_proj"]
LLAMA7B, SMOLLM2 = (4096, 11008, 32, 32, 32), (576, 1536, 30, 9, 3)


@pytest.mark.parametrize(
    ("shape", "settings", "wanted"),
    [
        (LLAMA7B, {"r": 64, "target_modules": ["q_proj", "v_proj"], "side": "input"}, 1_048_576),
        (LLAMA7B, {"r": 64, "target_modules": ["q_proj", "k_proj", "v_proj", *FF[1:]], "side": "input"}, 3_506_176),
        (LLAMA7B, {"r": 16, **BLOCK}, 524_288),
        (LLAMA7B, {"r": 16, **BLOCK, "share_depth": False}, 16_777_216),
        (SMOLLM2, {"r": 16, "target_modules": ["q_proj", "v_proj"], "side": "input"}, 36_864),
    ],
)  # fmt: skip
def test_parameter_counts_of_the_paper(shape, settings, wanted):
    model = gift(meta_llama(*shape), **settings)
    assert model.num_parameters(only_trainable=True) == wanted


def test_lora_beside_it():
    model = get_peft_model(meta_llama(*SMOLLM2), LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
    assert model.num_parameters(only_trainable=True) == 921_600


@pytest.mark.parametrize("layers", [2, 5])
def test_saved_tensors_are_two_per_group(tmp_path, layers: int):
    trained(tiny.llama(num_hidden_layers=layers)).save_pretrained(tmp_path, save_embedding_layers=False)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    assert len(stored) == 2 * len(SEVEN)
    assert all(key.startswith("base_model.gift_shared.") for key in stored)


# --- save, load -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("adapter", ["default", "other"])
def test_saved_and_loaded_is_bit_equal(tmp_path, variant, adapter: str, low_memory: bool):
    model = trained(**variant)
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    again = PeftModel.from_pretrained(tiny.llama(), tmp_path, adapter, low_cpu_mem_usage=low_memory).eval()
    assert torch.equal(logits(again), logits(model))
    assert not any(p.is_meta for p in again.parameters())


def test_a_subset_of_layers_uses_the_same_file(tmp_path):
    trained().save_pretrained(tmp_path, save_embedding_layers=False)
    config = GiftConfig.from_pretrained(tmp_path)
    config.layers_to_transform = [1]
    part = PeftModel.from_pretrained(tiny.llama(), tmp_path, config=config).eval()
    layers = [name for name, module in part.named_modules() if isinstance(module, GiftLayer)]
    assert layers and all(".layers.1." in name for name in layers)
    assert not torch.equal(logits(part), logits(tiny.llama()))


@pytest.mark.parametrize("fault", ["missing", "shape"])
def test_a_damaged_file_is_refused(tmp_path, fault: str):
    trained().save_pretrained(tmp_path, save_embedding_layers=False)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    key = "base_model.gift_shared.q_proj-input-32.psi"
    if fault == "missing":
        del stored[key]
    else:
        stored[key] = stored[key][:2].contiguous()
    save_file(stored, tmp_path / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match="q_proj-input-32"):
        PeftModel.from_pretrained(tiny.llama(), tmp_path)


def test_the_config_survives_json(tmp_path):
    config = GiftConfig(r=3, target_modules={"v_proj", "q_proj"}, side=SIDES, share=[["q_proj", "v_proj"]])
    config.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "adapter_config.json").read_text())
    assert stored["peft_type"] == "GIFT" and stored["target_modules"] == ["q_proj", "v_proj"]
    assert GiftConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    assert PeftType("GIFT") is PeftType.GIFT and "GIFT" in list(PeftType)


def test_modules_to_save_and_biases_travel(tmp_path):
    model = trained(tiny.gpt2(), target_modules=["c_fc"], side="input", bias="gift_only", modules_to_save=["ln_f"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and ".gift_" not in name:
                parameter.add_(0.1)
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    again = PeftModel.from_pretrained(tiny.gpt2(), tmp_path).eval()
    assert torch.equal(logits(again), logits(model))


# --- sharing --------------------------------------------------------------------------------------------------------


def pair(model: nn.Module, adapter: str = "default") -> tuple[nn.Module, nn.Module]:
    layers = [m for n, m in model.named_modules() if isinstance(m, GiftLayer) and n.endswith("q_proj")]
    return layers[0].gift_in[adapter], layers[1].gift_in[adapter]


def test_sharing_survives_everything(tmp_path):
    model = trained()

    def shared(some: nn.Module, adapter: str = "default") -> bool:
        first, second = pair(some, adapter)
        return first is second and first.phi is second.phi

    assert shared(model)
    model.add_adapter("second", GiftConfig(r=2, target_modules=QKVO))
    assert shared(model) and shared(model, "second")
    assert pair(model)[0] is not pair(model, "second")[0]
    model.set_adapter("second")
    assert shared(model) and not pair(model)[0].phi.requires_grad and pair(model, "second")[0].phi.requires_grad
    model.set_adapter("default")
    model.delete_adapter("second")
    assert shared(model) and "second" not in model.peft_config
    twin = copy.deepcopy(model)
    assert shared(twin) and pair(twin)[0] is not pair(model)[0]
    assert shared(model.to(torch.bfloat16)) and shared(model.to("cpu")) and shared(model.float())
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    for low_memory in (False, True):
        assert shared(PeftModel.from_pretrained(tiny.llama(), tmp_path, low_cpu_mem_usage=low_memory))
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(input_ids=IDS, labels=IDS).loss.backward()
    optimiser.step()
    assert shared(model)


def test_a_bf16_base_keeps_fp32_generators():
    model = trained(tiny.llama().to(torch.bfloat16))
    assert pair(model)[0].phi.dtype == torch.float32
    assert logits(model).dtype == torch.bfloat16
    assert not torch.equal(logits(model), logits(tiny.llama().to(torch.bfloat16)))


# --- several adapters -----------------------------------------------------------------------------------------------


def two(side_a: str, side_b: str) -> PeftModel:
    model = gift(side=side_a)
    model.add_adapter("second", GiftConfig(r=3, target_modules=["q_proj", "down_proj"], side=side_b))
    return randomise(model)


def naive(model: PeftModel, adapters: list[str]) -> torch.Tensor:
    """The base with W + Σ ΔW put in by hand."""
    plain = tiny.llama()
    with torch.no_grad():
        for name, layer in model.get_base_model().named_modules():
            if isinstance(layer, GiftLayer):
                for adapter in adapters:
                    if adapter in layer.scale:
                        plain.get_submodule(name).weight += layer.get_delta_weight(adapter)
    return logits(plain)


@pytest.mark.parametrize("sides", [("input", "input"), ("input", "output"), ("output", "both"), ("both", "both")])
def test_active_adapters_add_up(sides):
    model = two(*sides)
    for active in (["default"], ["second"], ["default", "second"]):
        model.base_model.set_adapter(active)
        torch.testing.assert_close(logits(model), naive(model, active), rtol=0, atol=2e-5)


def test_a_batch_may_mix_adapters():
    model = two("input", "output")
    rows = [logits_row(model, name, i) for i, name in enumerate(["second", "default"])]
    with torch.no_grad():
        mixed = model(input_ids=IDS, adapter_names=["second", "default"]).logits
        plain = model(input_ids=IDS, adapter_names=["__base__", "default"]).logits[0]
    torch.testing.assert_close(mixed, torch.stack(rows), rtol=0, atol=2e-5)
    torch.testing.assert_close(plain, logits(tiny.llama())[0], rtol=0, atol=2e-5)
    with pytest.raises(ValueError, match="typo"):
        model(input_ids=IDS, adapter_names=["typo", "default"])
    with pytest.raises(ValueError, match="2 rows"):
        model(input_ids=IDS, adapter_names=["default"])


def logits_row(model: PeftModel, adapter: str, row: int) -> torch.Tensor:
    model.set_adapter(adapter)
    return logits(model)[row]


# --- merging --------------------------------------------------------------------------------------------------------


def bases() -> dict[str, tuple]:
    return {"llama": (tiny.llama, SEVEN), "gpt2": (tiny.gpt2, GPT2)}


@pytest.mark.parametrize("side", ["input", "output", "both"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_merged_equals_unmerged_and_unmerging_restores_every_byte(name: str, side: str):
    make, targets = bases()[name]
    model = trained(make(), target_modules=targets, side=side, share="type")
    original = {n: p.detach().clone() for n, p in model.named_parameters()}
    wanted = logits(model)
    model.merge_adapter()
    assert (logits(model) - wanted).abs().max() <= 1e-6 * max(1.0, wanted.abs().max().item())
    assert not torch.equal(logits(model), logits(make()))
    model.unmerge_adapter()
    assert all(torch.equal(p, original[n]) for n, p in model.named_parameters())
    assert torch.equal(logits(model), wanted)
    with model.disable_adapter():
        assert torch.equal(logits(model), logits(make()))
    plain = model.merge_and_unload()
    assert type(plain) is type(make()) and not any(isinstance(m, GiftLayer) for m in plain.modules())
    torch.testing.assert_close(logits(plain), wanted, rtol=0, atol=1e-5)


def test_two_merged_one_after_the_other_equal_both_active():
    model = two("both", "output")
    model.base_model.set_adapter(["default", "second"])
    wanted = logits(model)
    model.merge_adapter(["default"])
    with pytest.warns(UserWarning, match="additionally merging"):
        model.merge_adapter(["second"])
    torch.testing.assert_close(logits(model), wanted, rtol=0, atol=2e-5)
    together = two("both", "output")
    together.merge_adapter(["default", "second"])
    assert torch.equal(logits(together), logits(model))
    model.unmerge_adapter()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), two("both", "output").parameters()))


def test_disabling_a_merged_adapter_gives_the_base():
    model = trained()
    model.merge_adapter()
    with model.disable_adapter():
        assert torch.equal(logits(model), logits(tiny.llama()))


def test_a_safe_merge_refuses_nan_and_keeps_the_weight():
    model = trained()
    with torch.no_grad():
        pair(model)[0].phi[0, 0] = float("nan")
    before = pair_weight(model).clone()
    with pytest.raises(ValueError, match="NaN"):
        model.merge_adapter(safe_merge=True)
    assert torch.equal(pair_weight(model), before)


def pair_weight(model: nn.Module) -> torch.Tensor:
    return next(m for n, m in model.named_modules() if isinstance(m, GiftLayer)).weight


# --- conversion into a LoRA -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("side", ["input", "output", "both"])
def test_lora_factors_reproduce_the_update(name: str, side: str):
    make, targets = bases()[name]
    model = trained(make(), target_modules=targets, side=side, share="type")
    wanted, plain = logits(model), make()
    factors = lora_factors(model)
    for module, (a, b) in factors.items():
        layer = plain.get_submodule(module)
        assert a.shape[0] == (8 if side == "both" else 4)
        with torch.no_grad():
            layer.weight += (b @ a).T if name == "gpt2" else b @ a
    assert (logits(plain) - wanted).abs().max() <= 1e-6 * max(1.0, wanted.abs().max().item())
    model.merge_adapter()  # factors come from the weight before the merge
    again = lora_factors(model)
    assert all(torch.equal(again[m].B, factors[m].B) and torch.equal(again[m].A, factors[m].A) for m in factors)


@pytest.mark.parametrize("side", ["input", "output"])
def test_pefts_own_conversion_agrees(side: str):
    from peft import convert_to_lora, set_peft_model_state_dict

    model = trained(side=side, target_modules=QKVO)
    config, state = convert_to_lora(model, rank=4, progressbar=False)
    other = get_peft_model(tiny.llama(), config).eval()
    set_peft_model_state_dict(other, state)
    torch.testing.assert_close(logits(other), logits(model), rtol=0, atol=2e-5)


def test_edited_biases_cannot_become_a_lora():
    model = trained(tiny.gpt2(), target_modules=GPT2, side="output", output_edits_bias=True)
    wanted = logits(model)
    with pytest.raises(NotSupportedError, match="bias"):
        lora_factors(model)
    model.merge_adapter()
    torch.testing.assert_close(logits(model), wanted, rtol=0, atol=2e-5)
    model.unmerge_adapter()
    assert torch.equal(logits(model), wanted)


def test_the_output_side_is_direft_and_loreft_on_the_module_output():
    """DiReFT without bias: h + W2ᵀ (W1 h); LoReFT: h + Rᵀ (W h − R h) with orthonormal R."""
    model = trained(target_modules=["o_proj"], side="output", share="none")
    plain = tiny.llama()
    for index in range(2):
        generator = model.get_submodule(f"base_model.model.model.layers.{index}.self_attn.o_proj").gift_out["default"]
        rows = torch.linalg.qr(torch.randn(32, 4)).Q.T
        learned = torch.randn(4, 32) * 0.2
        with torch.no_grad():
            generator.phi.copy_(rows.T)
            generator.psi.copy_(learned - rows)

        def edit(module, args, h, rows=rows, learned=learned):
            return h + (learned @ h[..., None] - rows @ h[..., None])[..., 0] @ rows

        plain.get_submodule(f"model.layers.{index}.self_attn.o_proj").register_forward_hook(edit)
    torch.testing.assert_close(logits(model), logits(plain), rtol=0, atol=1e-5)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"r": 64}, "rank 64 is larger than the width 32"),
        ({"share": [["q_proj", "down_proj"]], "side": "input"}, "unequal width.*down_proj has 48"),
        ({"share": "all", "side": "input"}, "unequal width"),
        ({"share": [["q_proj", "qq_proj"]]}, "qq_proj"),
        ({"share": [["q_proj"], ["q_proj", "k_proj"]]}, "more than once"),
        ({"share": "typ"}, "share='typ'"),
        ({"side": {"q_proj": "input"}}, "no side for"),
        ({"side": {**SIDES, "x_proj": "input"}}, "x_proj"),
        ({"side": "left"}, "side='left'"),
        ({"group_ranks": {"q_proj": 2}, "share": [["q_proj", "k_proj"]]}, "rank of its own"),
        ({"group_ranks": {"z_proj": 2}}, "no group"),
        ({"group_ranks": {"q_proj": 0}}, "q_proj=0"),
        ({"r": 0}, "r=0"),
        ({"gift_dropout": 1.0}, "gift_dropout"),
        ({"init_weights": "psi"}, "psi_zero"),
        ({"nonlinearity": "relu"}, "nonlinearity"),
        ({"share_depth": 0}, "share_depth"),
        ({"target_modules": "nothing_like_it", "side": "input"}, "not found in the base model"),
    ],
)
def test_bad_settings_are_refused_before_the_model_is_touched(settings, text):
    base = tiny.llama()
    with pytest.raises(ValueError, match=text):
        gift(base, **settings)
    assert not any(isinstance(module, GiftLayer) for module in base.modules())


def test_layers_that_are_not_linear_are_refused():
    with pytest.raises(NotSupportedError, match="Embedding"):
        gift(tiny.llama(), target_modules=["embed_tokens"], side="input")

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2)

    with pytest.raises(NotSupportedError, match="MultiheadAttention"):
        get_peft_model(Attending(), GiftConfig(r=2, target_modules=["out_proj"]))


def test_generation_with_a_cache_equals_generation_without():
    model = trained()
    kwargs = dict(max_new_tokens=6, do_sample=False, attention_mask=torch.ones(1, 4, dtype=torch.long))
    with torch.no_grad():
        cached = model.generate(input_ids=IDS[:1, :4], use_cache=True, **kwargs)
        plain = model.generate(input_ids=IDS[:1, :4], use_cache=False, **kwargs)
    assert torch.equal(cached, plain)


def test_a_weight_that_cannot_be_read_is_not_merged():
    model = trained()
    layer = next(module for module in model.modules() if isinstance(module, GiftLayer))
    layer.quantization_backend = ForwardOnlyQuantizationBackend("gptq")
    with pytest.raises(NotSupportedError, match="gptq layer does not give its weight back"):
        layer.merge()
    assert not layer.merged


@pytest.mark.parametrize("side", ["input", "output"])
def test_decoding_costs_4rd_a_token_whatever_the_size_of_the_weight(side: str):
    for width in (32, 96):
        base = nn.Sequential(nn.Linear(32, width, bias=False))
        token = torch.randn(1, 32)

        def flops(module: nn.Module, token=token) -> int:
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                module(token)
            return counter.get_total_flops()

        plain = flops(base)
        model = get_peft_model(base, GiftConfig(r=4, target_modules=["0"], side=side)).eval()
        assert flops(model) - plain == 4 * 4 * (32 if side == "input" else width)


def test_a_config_before_registration_says_how_to_import_it():
    code = "from budwood.methods.gift.config import GiftConfig; GiftConfig(target_modules=['q_proj'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0 and "from budwood import GiftConfig" in done.stderr


def test_registering_twice_and_beside_a_peft_that_has_it():
    from budwood import peft

    before = list(PeftType)
    peft.register()
    peft.register()
    assert list(PeftType) == before and peft.is_registered("gift")


def test_many_full_names_as_targets_survive_saving(tmp_path):
    """PEFT shortens lists of 20 and more targets; the groups must not be renamed by that."""
    make = partial(tiny.llama, num_hidden_layers=12)
    targets = [name for name, module in make().named_modules() if name.endswith(("q_proj", "v_proj"))]
    model = trained(make(), target_modules=targets, side=dict.fromkeys(targets, "input"), share="type")
    assert len(targets) == 24 and model.peft_config["default"].target_modules == sorted(targets)
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    assert torch.equal(logits(PeftModel.from_pretrained(make(), tmp_path).eval()), logits(model))


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_settings_with_roles_fit_other_architectures(name: str):
    from transformers import BertConfig, BertModel

    from budwood.methods.gift import GiftSettings, make_config

    small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=99)
    base = tiny.gpt2() if name == "gpt2" else BertModel(BertConfig(**small))
    config = make_config(GiftSettings(rank=4), base)
    model = get_peft_model(base, config)
    layers = [module for module in model.modules() if isinstance(module, GiftLayer)]
    assert len(layers) == (8 if name == "gpt2" else 12)
    assert {layer.in_features for layer in layers if "default" in layer.gift_out} == {128 if name == "gpt2" else 48}
