"""GIFT with a nonlinear generator: ΔW = s g(W φ) ψ, or s φ g(ψ W); and the ways in which an update is computed."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel, get_peft_model
from peft.utils.quantization_utils import ForwardOnlyQuantizationBackend
from torch import Tensor, nn
from torch.nn import functional as F

import tests.tiny as tiny
from budwood import GiftConfig
from budwood.errors import ConfigError, NotSupportedError
from budwood.methods.gift import GiftSettings, make_config
from budwood.methods.gift.tuner import GiftLayer
from budwood.tuning import linear, shared_layer
from budwood.tuning.edits import LowRankMap, canonical
from budwood.tuning.factors import lora_factors

IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BENT = ["gelu", "sigmoid", "mlp"]


def randomise(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".gift_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def gift(base: nn.Module | None = None, **settings: object) -> PeftModel:
    given = {"r": 4, "target_modules": SEVEN, "side": "input", "task_type": "CAUSAL_LM"} | settings
    return get_peft_model(base if base is not None else tiny.llama(), GiftConfig(**given)).eval()


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def naive_g(name: str, generator: nn.Module, rows: Tensor) -> Tensor:
    if name == "mlp":
        unit = rows / rows.norm(dim=-1, keepdim=True)
        return rows + F.gelu(unit @ generator.theta_in.T) @ generator.theta_out.T
    return {"gelu": F.gelu, "sigmoid": torch.sigmoid, "identity": lambda rows: rows}[name](rows)


def written_out(model: PeftModel, name: str) -> dict[str, Tensor]:
    """Ŵ of every adapted layer, from the paper's formulas."""
    weights = {}
    for module, layer in model.get_base_model().named_modules():
        if isinstance(layer, GiftLayer):
            transposed, weight = layer._is_transposed(), layer.get_base_layer().weight
            edited = weight = weight.T if transposed else weight
            scale = layer.scale["default"]
            if "default" in layer.gift_in:
                inner = layer.gift_in["default"]
                edited = edited + scale * naive_g(name, inner, weight @ inner.phi) @ inner.psi
            if "default" in layer.gift_out:
                outer = layer.gift_out["default"]
                edited = edited + scale * outer.phi @ naive_g(name, outer, (outer.psi @ edited).T).T
            weights[f"{module}.weight"] = edited.T if transposed else edited
    return weights


@pytest.mark.parametrize("side", ["input", "output", "both"])
@pytest.mark.parametrize("nonlinearity", ["identity", *BENT])
def test_loss_and_gradients_equal_those_of_the_formula_in_float64(nonlinearity: str, side: str):
    """Activation mode (identity) and factor mode (the others) against a dense Ŵ."""
    model = randomise(gift(side=side, nonlinearity=nonlinearity, gift_alpha=6)).double()
    loss = model(input_ids=IDS, labels=IDS).loss
    loss.backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    other = torch.func.functional_call(
        tiny.llama().double(), written_out(model, nonlinearity), (), {"input_ids": IDS, "labels": IDS}
    ).loss
    other.backward()
    torch.testing.assert_close(loss, other, rtol=0, atol=1e-10)
    for name, parameter in model.named_parameters():
        if name in got:
            torch.testing.assert_close(got[name], parameter.grad, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("base", ["llama", "gpt2", "bf16"])
@pytest.mark.parametrize("nonlinearity", BENT)
def test_starts_at_the_base_and_every_parameter_can_learn(nonlinearity: str, base: str):
    bases = {"llama": tiny.llama, "gpt2": tiny.gpt2, "bf16": lambda: tiny.llama().bfloat16()}
    plain = bases[base]()
    wanted = logits(plain)
    model = get_peft_model(plain, make_config(GiftSettings(rank=4, nonlinearity=nonlinearity), plain)).eval()
    assert torch.equal(logits(model), wanted)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    for _ in range(4):
        optimiser.zero_grad()
        model.train()(input_ids=IDS, labels=IDS).loss.backward()
        optimiser.step()
    moved = dict(model.named_parameters())
    assert all(not torch.equal(moved[name], old) for name, old in before.items())


@pytest.mark.parametrize("side", ["input", "output", "both"])
@pytest.mark.parametrize("nonlinearity", BENT)
def test_saved_merged_and_converted_it_is_the_same(tmp_path, nonlinearity: str, side: str):
    model = randomise(gift(side=side, nonlinearity=nonlinearity))
    wanted = logits(model)
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    assert torch.equal(logits(PeftModel.from_pretrained(tiny.llama(), tmp_path).eval()), wanted)
    plain = tiny.llama()
    with torch.no_grad():
        for name, (a, b) in lora_factors(model).items():
            plain.get_submodule(name).weight += b @ a
    torch.testing.assert_close(logits(plain), wanted, rtol=0, atol=2e-5)
    model.merge_adapter()
    torch.testing.assert_close(logits(model), wanted, rtol=0, atol=2e-5)
    model.unmerge_adapter()
    assert torch.equal(logits(model), wanted)
    with model.disable_adapter():
        assert torch.equal(logits(model), logits(tiny.llama()))


def test_the_mlp_is_learned_and_counted():
    plain, bent = gift(target_modules=["q_proj"]), gift(target_modules=["q_proj"], nonlinearity="mlp")
    count = bent.num_parameters(only_trainable=True) - plain.num_parameters(only_trainable=True)
    assert count == 4 * 4**2


def test_linear_and_nonlinear_adapters_add_up_and_mix_in_a_batch():
    model = gift(side="both", nonlinearity="gelu")
    model.add_adapter("second", GiftConfig(r=3, target_modules=["q_proj", "down_proj"], side="output"))
    randomise(model)
    single = []
    for name in ("default", "second"):
        model.set_adapter(name)
        single.append(logits(model))
    with torch.no_grad():
        mixed = model(input_ids=IDS, adapter_names=["default", "second"]).logits
    torch.testing.assert_close(mixed, torch.stack([single[0][0], single[1][1]]), rtol=0, atol=2e-5)
    model.base_model.set_adapter(["default", "second"])
    together, plain = logits(model), tiny.llama()
    with torch.no_grad():
        for name, layer in model.get_base_model().named_modules():
            if isinstance(layer, GiftLayer):
                for adapter in layer.scale:
                    plain.get_submodule(name).weight += layer.get_delta_weight(adapter)
    torch.testing.assert_close(together, logits(plain), rtol=0, atol=2e-5)


# --- factors are kept in evaluation --------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each pair of factors that is computed."""
    calls: list[int] = []
    plain = shared_layer.lora_factors
    monkeypatch.setattr(shared_layer, "lora_factors", lambda *args: (calls.append(1), plain(*args))[1])
    return calls


def test_factors_are_computed_once_in_evaluation_and_anew_after_a_change(made):
    model = randomise(gift(nonlinearity="gelu"))
    first = logits(model)
    assert len(made) == 14 and torch.equal(logits(model), first) and len(made) == 14
    layer = next(module for module in model.modules() if isinstance(module, GiftLayer))
    for change in (
        lambda: layer.gift_in["default"].phi.mul_(1.5),
        lambda: layer.weight.mul_(1.1),
        lambda: setattr(layer.gift_in["default"], "psi", nn.Parameter(layer.gift_in["default"].psi * 2)),
    ):
        with torch.no_grad():
            change()
        after = logits(model)
        assert not torch.equal(after, first)
        model.train()
        with torch.no_grad():
            assert torch.equal(model(input_ids=IDS).logits, after)  # never kept while training
        model.eval()
        first = logits(model)
        assert torch.equal(first, after)


def test_generation_computes_the_factors_once(made):
    model = randomise(gift(nonlinearity="sigmoid"))
    model.generate(input_ids=IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=5, do_sample=False)
    assert len(made) == 14


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"nonlinearity": "tanh"}, "nonlinearity='tanh'"),
        ({"nonlinearity": "gelu", "output_edits_bias": True, "side": "output"}, "output_edits_bias"),
        ({"nonlinearity": "sigmoid", "init_weights": "phi_zero"}, "sigmoid on the input side"),
        ({"nonlinearity": "sigmoid", "init_weights": "psi_zero", "side": "both"}, "sigmoid on the both side"),
        ({"nonlinearity": "sigmoid", "init_weights": "psi_zero", "side": "output"}, "sigmoid on the output side"),
    ],
)
def test_settings_that_cannot_be(settings, text):
    with pytest.raises(ConfigError, match=text):
        GiftConfig(target_modules=["q_proj"], **settings)


def test_a_weight_that_cannot_be_read_is_refused_at_attach(monkeypatch):
    monkeypatch.setattr(linear, "_backend", lambda module: ForwardOnlyQuantizationBackend("gptq"))
    base = tiny.llama()
    with pytest.raises(NotSupportedError, match="does not give its weight back"):
        gift(base, nonlinearity="gelu")
    assert not any(isinstance(module, GiftLayer) for module in base.modules())
    gift(base)  # the identity needs no weight


# --- properties of the linear generator -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_canonical_form_is_the_same_for_every_gauge(seed: int):
    torch.manual_seed(seed)
    phi, psi, change = (torch.randn(shape, dtype=torch.float64) for shape in ((9, 3), (3, 9), (3, 3)))
    turned = phi @ change, torch.linalg.solve(change, psi)
    first, second = canonical(phi, psi), canonical(*turned)
    for one, other in zip(first, second):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    torch.testing.assert_close(first[0] @ first[1], phi @ psi)
    sizes = first[0].norm(dim=0)
    assert (sizes.diff() <= 0).all() and torch.allclose(sizes, first[1].norm(dim=1))


def test_a_change_of_gauge_leaves_the_logits_and_changes_the_maps():
    model = randomise(gift())
    before = logits(model)
    generator = next(m for m in model.modules() if isinstance(m, GiftLayer)).gift_in["default"]
    change = torch.eye(4) + 0.3 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    old = generator.phi.detach().clone()
    with torch.no_grad():
        generator.phi.copy_(old @ change)
        generator.psi.copy_(torch.linalg.solve(change, generator.psi))
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-5)
    assert not torch.allclose(generator.phi, old)


@pytest.mark.parametrize("side", ["input", "output"])
def test_activation_and_factor_mode_are_one(side: str):
    """A bend that does nothing takes the other way through the layer: same output, same gradients."""
    results = []
    for bend in (None, lambda rows: rows):
        model = randomise(gift(side=side))
        for layer in model.modules():
            if isinstance(layer, GiftLayer):
                layer._bent["default"] = bend is not None
                edit = layer.edit("default")
                layer.edit = lambda adapter, edit=edit, bend=bend: {
                    place: LowRankMap(m.up, m.down, m.scale, bend) for place, m in edit.items()
                }
        loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        results.append((loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-5)
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], gradient, rtol=1e-3, atol=1e-5)


class Fused(nn.Module):
    """q, k and v in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.qkv(x)


class Apart(nn.Module):
    """The same q, k and v in three."""

    def __init__(self, fused: Fused) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        with torch.no_grad():
            parts = zip((self.q, self.k, self.v), fused.qkv.weight.split([8, 8, 4]), fused.qkv.bias.split([8, 8, 4]))
            for layer, weight, bias in parts:
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.q(x), self.k(x), self.v(x)], -1)


@pytest.mark.parametrize("nonlinearity", ["identity", "gelu"])
def test_a_fused_qkv_equals_separate_ones_that_share(nonlinearity: str):
    torch.manual_seed(0)
    fused, x = Fused(), torch.randn(5, 8)
    apart = Apart(fused)
    names = ["q", "k", "v"]
    one = randomise(get_peft_model(fused, GiftConfig(r=2, target_modules=["qkv"], nonlinearity=nonlinearity)))
    three = randomise(
        get_peft_model(apart, GiftConfig(r=2, target_modules=names, share=[names], nonlinearity=nonlinearity))
    )
    torch.testing.assert_close(one(x), three(x))
    assert one.get_base_model().qkv.gift_in["default"].phi.shape == (8, 2)


def test_gpt2s_fused_matrix_is_the_plain_input_side():
    """Conv1D of 32 -> 96: three row slices under one φψ."""
    model = randomise(gift(tiny.gpt2(), target_modules=["c_attn"]))
    layer = model.get_base_model().transformer.h[0].attn.c_attn
    generator, x = layer.gift_in["default"], torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    weight, bias = layer.get_base_layer().weight.T, layer.get_base_layer().bias
    slices = [(w + w @ generator.phi @ generator.psi, b) for w, b in zip(weight.split(32), bias.split(32))]
    torch.testing.assert_close(layer(x), torch.cat([x @ w.T + b for w, b in slices], -1))
