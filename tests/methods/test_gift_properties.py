"""Properties of GIFT that follow from its equations, on whole models; docs/gift.md lists them all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from peft import PeftModel, convert_to_lora, get_peft_model, set_peft_model_state_dict
from torch import Tensor, nn

import tests.tiny as tiny
from budwood import GiftConfig
from budwood.methods.gift.maps import token_maps
from budwood.methods.gift.tuner import GiftLayer
from budwood.tuning.edits import canonical
from budwood.tuning.factors import lora_factors

IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])
GPT2 = ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"]
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BASES: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {"llama": (tiny.llama, LLAMA), "gpt2": (tiny.gpt2, GPT2)}


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def gift(base: nn.Module, **settings: object) -> PeftModel:
    """GIFT with random φ and ψ, so that it does something."""
    model = get_peft_model(base, GiftConfig(**({"r": 2, "task_type": "CAUSAL_LM"} | settings))).eval()
    return randomise(model)


def randomise(model: PeftModel) -> PeftModel:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".gift_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def mixed(targets: list[str]) -> dict[str, str]:
    """Input, output and both in turn."""
    return {target: ("input", "output", "both")[i % 3] for i, target in enumerate(targets)}


@pytest.mark.parametrize("nonlinearity", ["identity", "gelu", "mlp"])
@pytest.mark.parametrize("side", ["input", "output", "both"])
def test_a_weight_of_zero_has_no_update_and_no_gradient(side: str, nonlinearity: str):
    base = nn.Sequential(nn.Linear(6, 6))
    nn.init.zeros_(base[0].weight)
    model = get_peft_model(base, GiftConfig(r=2, target_modules=["0"], side=side, nonlinearity=nonlinearity))
    randomise(model)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    y = model(x)
    assert torch.equal(y, base[0].bias.expand(5, 6)) and not base[0].get_delta_weight("default").any()
    y.square().sum().backward()
    assert all(not p.grad.any() for name, p in model.named_parameters() if name.endswith((".phi", ".psi")))


def test_a_change_of_gauge_changes_the_maps_and_not_the_canonical_ones():
    model = gift(tiny.llama(), r=4, target_modules=["q_proj"])
    layer = next(module for module in model.modules() if isinstance(module, GiftLayer))
    generator, weight = layer.gift_in["default"], layer.weight
    outputs = torch.randn(7, 32, generator=torch.Generator().manual_seed(2))
    change = torch.eye(4) + 0.3 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0))

    def maps() -> tuple[Tensor, Tensor]:
        phi, psi = generator.phi.detach(), generator.psi.detach()
        return token_maps(weight @ phi, outputs), token_maps(weight @ canonical(phi, psi)[0], outputs)

    before, (raw, plain) = logits(model), maps()
    with torch.no_grad():
        generator.phi.copy_(generator.phi @ change)
        generator.psi.copy_(torch.linalg.solve(change, generator.psi))
    after = maps()
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-5)
    assert (after[0] - raw).abs().max() > 0.1
    torch.testing.assert_close(after[1], plain, rtol=0, atol=1e-4)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("side", ["input", "output", "both", "mixed"])
def test_exact_factors_and_pefts_own_conversion_agree(side: str, base: str):
    """`convert_to_lora` decomposes ΔW; at the rank that ΔW has nothing is lost."""
    make, targets = BASES[base]
    model = gift(make(), target_modules=targets, side=mixed(targets) if side == "mixed" else side)
    wanted, plain = logits(model), make()
    factors = lora_factors(model)
    assert max(a.shape[0] for a, _ in factors.values()) == (2 if side in ("input", "output") else 4)
    with torch.no_grad():
        for name, (a, b) in factors.items():
            plain.get_submodule(name).weight += (b @ a).T if base == "gpt2" else b @ a
    assert (logits(plain) - wanted).abs().max() <= 1e-6 * wanted.abs().max()  # fp32; the logits reach 4
    config, state = convert_to_lora(model, rank=4, progressbar=False)
    config.fan_in_fan_out = base == "gpt2"
    other = get_peft_model(make(), config).eval()
    set_peft_model_state_dict(other, state)
    torch.testing.assert_close(logits(other), wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("base", BASES)
def test_two_adapters_merged_one_after_the_other_equal_both_active(base: str):
    make, targets = BASES[base]
    model = gift(make(), target_modules=targets, side="both")
    model.add_adapter("second", GiftConfig(r=3, target_modules=targets[:2], side="output"))
    randomise(model).base_model.set_adapter(["default", "second"])
    before, wanted = {n: p.detach().clone() for n, p in model.named_parameters()}, logits(model)
    model.merge_adapter(["default"])
    with pytest.warns(UserWarning, match="additionally merging"):
        model.merge_adapter(["second"])
    torch.testing.assert_close(logits(model), wanted, rtol=0, atol=2e-5)
    model.unmerge_adapter()
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("share", ["type", "none"])
def test_a_subset_of_layers_computes_what_these_layers_compute(tmp_path, share: str, base: str):
    """The file of all layers, loaded for layer 1 alone: as the whole adapter with layer 0 switched off."""
    make, targets = BASES[base]
    whole = gift(make(), target_modules=targets, side=mixed(targets), share=share)
    whole.save_pretrained(tmp_path, save_embedding_layers=False)
    config = GiftConfig.from_pretrained(tmp_path)
    config.layers_to_transform = [1]
    part = PeftModel.from_pretrained(make(), tmp_path, config=config)
    for name, layer in whole.named_modules():
        if isinstance(layer, GiftLayer) and ".0." in name:
            layer.enable_adapters(False)
    assert torch.equal(logits(part), logits(whole)) and not torch.equal(logits(part), logits(make()))


def test_loading_leaves_no_key_out_and_none_over(tmp_path):
    gift(tiny.gpt2(), target_modules=GPT2, side=mixed(GPT2)).save_pretrained(tmp_path, save_embedding_layers=False)
    model = get_peft_model(tiny.gpt2(), GiftConfig.from_pretrained(tmp_path), "other")
    found = model.load_adapter(tmp_path, "again")
    assert not found.unexpected_keys and not [key for key in found.missing_keys if "gift_" in key]


# --- the limit of ReFT ----------------------------------------------------------------------------------------------

EDITS = {
    # DiReFT without bias: h + W₂ᵀ W₁ h, so φ = W₂ᵀ, ψ = W₁.
    "direft": lambda h, rows, learned: h + h @ learned.T @ rows,
    # LoReFT without bias: h + Rᵀ (W h − R h) with orthonormal rows of R, so φ = Rᵀ, ψ = W − R.
    "loreft": lambda h, rows, learned: h + (h @ learned.T - h @ rows.T) @ rows,
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(("base", "target"), [("llama", "o_proj"), ("gpt2", "attn.c_proj")])
def test_the_output_side_is_reft_on_the_module_output_at_every_position(base: str, target: str, edit: str):
    """In float64, to 1e-6; GPT-2's layer has a bias, which ReFT moves as well."""
    make, _ = BASES[base]
    settings = {"r": 4, "target_modules": [target], "side": "output", "share": "none", "output_edits_bias": True}
    model, plain = gift(make().double(), **settings), make().double()
    for seed, (name, layer) in enumerate(
        (n, m) for n, m in model.get_base_model().named_modules() if isinstance(m, GiftLayer)
    ):
        source = torch.Generator().manual_seed(seed)
        rows = torch.linalg.qr(torch.randn(32, 4, dtype=torch.float64, generator=source)).Q.T
        learned = 0.2 * torch.randn(4, 32, dtype=torch.float64, generator=source)
        generator = layer.gift_out["default"].double()
        with torch.no_grad():
            generator.phi.copy_(rows.T)
            generator.psi.copy_(learned if edit == "direft" else learned - rows)
        plain.get_submodule(name).register_forward_hook(
            lambda module, args, h, rows=rows, learned=learned: EDITS[edit](h, rows, learned)
        )
    torch.testing.assert_close(logits(model), logits(plain), rtol=0, atol=1e-6)
