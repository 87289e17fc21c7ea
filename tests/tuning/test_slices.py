"""A fused matrix under one map a slice equals separate layers with the same maps."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel, get_peft_model
from peft.utils.quantization_utils import ForwardOnlyQuantizationBackend
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import tests.tiny as tiny
from budwood import GiftConfig
from budwood.errors import ConfigError, NotSupportedError
from budwood.methods.gift import GiftSettings, make_config
from budwood.tuning import linear
from budwood.tuning.attach import count_parameters
from budwood.tuning.factors import lora_factors
from budwood.tuning.groups import Grouping, split_slice

WIDTHS = {"q": 8, "k": 6, "v": 6}
Q, K, V = SLICES = ["qkv[0:8]", "qkv[8:14]", "qkv[14:20]"]
APART = [[Q], [K], [V]]
X = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
GPT2 = [["c_attn[0:32]"], ["c_attn[32:64]"], ["c_attn[64:96]"]]
IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])


class Fused(nn.Module):
    def __init__(self, transposed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = Conv1D(20, 8) if transposed else nn.Linear(8, 20)
        nn.init.normal_(self.qkv.weight)
        nn.init.normal_(self.qkv.bias)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.qkv(x)


class Apart(nn.Module):
    """The same matrix in three layers."""

    def __init__(self, fused: Fused) -> None:
        super().__init__()
        weight = fused.qkv.weight.T if isinstance(fused.qkv, Conv1D) else fused.qkv.weight
        split = list(WIDTHS.values())
        for name, w, b in zip(WIDTHS, weight.detach().split(split), fused.qkv.bias.detach().split(split)):
            layer = nn.Linear(8, len(w)).double()
            layer.load_state_dict({"weight": w.clone(), "bias": b.clone()})
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.q(x), self.k(x), self.v(x)], -1)


def filled(model: PeftModel) -> dict[str, list[Tensor]]:
    """Give the maps of q, k and v random values, in the order of `order`; return their parameters in this order."""
    groups: dict[str, list[Tensor]] = {}
    for layer in model.modules():
        for place in getattr(layer, "groups", {}).get("default", {}):
            for group, _, part in layer.parts_at(place, "default"):
                groups.setdefault(group, list(part.parameters()))
    generator = torch.Generator().manual_seed(1)
    for name in sorted(groups, key=order):
        for parameter in groups[name]:
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return {name: groups[name] for name in sorted(groups, key=order)}


def order(group: str) -> tuple[int, str]:
    """q, k, v whatever the layers are called, then the place."""
    kind, place, _ = group.split("-")
    first = kind.split("+")[0]
    return (SLICES.index(first) if first in SLICES else list(WIDTHS).index(first)), place


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("nonlinearity", ["identity", "gelu", "sigmoid"])
@pytest.mark.parametrize("side", ["input", "output", "both"])
def test_one_map_a_slice_equals_three_layers(side: str, nonlinearity: str, transposed: bool):
    """Property 12: outputs, gradients of every φ and ψ, the merged weight and the exact LoRA, in float64."""
    fused = Fused(transposed)
    apart = Apart(fused)
    common = {"r": 2, "side": side, "nonlinearity": nonlinearity, "gift_alpha": 3}
    one = get_peft_model(fused, GiftConfig(target_modules=["qkv"], share=APART, **common))
    three = get_peft_model(apart, GiftConfig(target_modules=list(WIDTHS), share="type", **common))
    of_one, of_three = filled(one), filled(three)
    assert len(of_one) == len(of_three) == (6 if side == "both" else 3)
    wanted = three(X)
    torch.testing.assert_close(one(X), wanted, rtol=0, atol=1e-12)
    one(X).square().sum().backward()
    three(X).square().sum().backward()
    for mine, theirs in zip(of_one.values(), of_three.values()):
        for a, b in zip(mine, theirs):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-9)
    a, b = lora_factors(one)["qkv"]
    assert a.shape == (12 if side == "both" else 6, 8)
    blocks = [(f.B @ f.A) for f in lora_factors(three).values()]
    torch.testing.assert_close(b @ a, torch.cat(blocks), rtol=0, atol=1e-4)
    before = fused.qkv.weight.clone()
    one.merge_adapter()
    torch.testing.assert_close(one(X), wanted, rtol=0, atol=1e-10)
    one.unmerge_adapter()
    assert torch.equal(fused.qkv.weight, before)


def test_rows_in_no_slice_stay_as_they_are_and_slices_may_share():
    model = get_peft_model(Fused(), GiftConfig(r=2, target_modules=["qkv"], share=[[K, V]]))
    assert count_parameters(model) == 2 * 2 * 8
    filled(model)
    edited, plain = model(X), Fused()(X)
    assert torch.equal(edited[:, :8], plain[:, :8]) and not torch.isclose(edited[:, 8:], plain[:, 8:]).any()
    torch.testing.assert_close(lora_factors(model)["qkv"].B[:8], torch.zeros(8, 4))


def gpt2(**settings: object) -> PeftModel:
    given = {"r": 3, "target_modules": ["c_attn", "c_fc"], "share": GPT2, "task_type": "CAUSAL_LM"} | settings
    return get_peft_model(tiny.gpt2(), GiftConfig(**given)).eval()


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("side", ["input", "output", "both"])
def test_slices_are_shared_by_layers_saved_once_and_loaded(tmp_path, side: str):
    model = gpt2(side=side)
    assert torch.equal(logits(model), logits(tiny.gpt2()))
    first, second = (block.attn.c_attn for block in model.get_base_model().transformer.h)
    place = "output" if side == "output" else "input"
    parts = [list(layer.parts_at(place, "default")) for layer in (first, second)]
    assert [name for name, *_ in parts[0]] == [f"{kind}-{place}-32" for (kind,) in GPT2]
    assert all(one[2] is other[2] for one, other in zip(*parts)) and len({id(part) for *_, part in parts[0]}) == 3
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.normal_(std=0.1)
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    assert len(load_file(tmp_path / "adapter_model.safetensors")) == (16 if side == "both" else 8)
    for low_memory in (False, True):
        again = PeftModel.from_pretrained(tiny.gpt2(), tmp_path, low_cpu_mem_usage=low_memory).eval()
        assert torch.equal(logits(again), logits(model)) and not torch.equal(logits(again), logits(tiny.gpt2()))
    plain = tiny.gpt2()
    with torch.no_grad():
        for name, (a, b) in lora_factors(model).items():
            plain.get_submodule(name).weight += (b @ a).T
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=1e-5)


def test_settings_take_slices_of_roles_and_ranks_of_them():
    slices = [["qkv[0:32]"], ["qkv[64:96]"]]
    settings = GiftSettings(rank=4, targets=["qkv"], share=slices, group_ranks={"qkv[64:96]": 2})
    config = make_config(settings, tiny.gpt2())
    assert config.share == [["c_attn[0:32]"], ["c_attn[64:96]"]] and config.group_ranks == {"c_attn[64:96]": 2}
    model = get_peft_model(tiny.gpt2(), config)
    assert count_parameters(model) == 2 * 32 * (4 + 2)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"share": [[Q], ["qkv[8:21]"]]}, r"qkv\[8:21\] of qkv, which writes 20"),
        ({"share": [["qkv[8:8]"]]}, r"qkv\[8:8\]"),
        ({"share": [[Q], ["qkv[7:14]"]]}, r"qkv\[7:14\] of qkv overlaps another"),
        ({"share": [[Q], ["qkv"]]}, "'qkv', which is not among"),
        ({"share": [["qvk[0:8]"]]}, r"did you mean 'qkv'"),
        ({"share": [[Q, K]], "side": "output"}, "unequal width"),
        ({"share": APART, "side": "output", "r": 7}, "rank 7 is larger than the width 6"),
        ({"share": APART, "group_ranks": {Q: 1}, "gift_alpha": 4}, "different scales"),
    ],
)
def test_slices_that_cannot_be_are_refused(settings: dict, text: str):
    with pytest.raises(ConfigError, match=text):
        get_peft_model(Fused(), GiftConfig(**({"r": 2, "target_modules": ["qkv"]} | settings)))


def test_the_input_side_of_a_slice_needs_the_weight_and_the_output_side_does_not(monkeypatch):
    monkeypatch.setattr(linear, "_backend", lambda module: ForwardOnlyQuantizationBackend("gptq"))
    with pytest.raises(NotSupportedError, match="does not give its weight back"):
        get_peft_model(Fused(), GiftConfig(r=2, target_modules=["qkv"], share=APART))
    get_peft_model(Fused(), GiftConfig(r=2, target_modules=["qkv"], share=APART, side="output"))


def test_names_of_slices():
    assert split_slice("c_attn[0:32]") == ("c_attn", (0, 32))
    assert split_slice("c_attn") == ("c_attn", None)
    grouping = Grouping([["x", "c[4:8]"], ["c[0:4]"]])
    assert grouping.parts("c") == ("c[0:4]", "c[4:8]") and grouping.parts("x") == ("x",)
