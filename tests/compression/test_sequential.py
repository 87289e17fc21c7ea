"""Models block by block, against hooks on whole models that are compressed by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM
from transformers.pytorch_utils import Conv1D

from budwood.compression.grids import rtn
from budwood.compression.sequential import compress_calibrated, compress_plain
from budwood.compression.settings import Compression
from budwood.compression.surgeon import gptq
from budwood.errors import NotSupportedError
from budwood.models import find_sites
from tests import tiny
from tests.export import bases

WINDOWS = torch.randint(0, 256, (6, 24), generator=torch.Generator().manual_seed(0))


def gemma2() -> Gemma2ForCausalLM:
    """Whose layers see a window of 8 tokens and all of them by turns, so that their masks differ."""
    torch.manual_seed(0)
    return Gemma2ForCausalLM(Gemma2Config(**bases.SIZES, head_dim=8, sliding_window=8)).eval()


MODELS = {"llama": tiny.llama, "gpt2": tiny.gpt2, "qwen3": bases.qwen3, "gemma2": gemma2}


def settled(method: str = "", **settings) -> Compression:
    return Compression(method, **settings).settled(has_text=True)


def weight_of(model, name):
    layer = model.get_submodule(name)
    return (layer.weight.T if isinstance(layer, Conv1D) else layer.weight).detach()


def inputs_of(model, names):
    """Run all windows as one batch through the whole model; return what the layers read, (tokens, d_in)."""
    read = {}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(lambda m, x, name=name: read.update({name: x[0]}))
        for name in names
    ]
    with torch.no_grad():
        model(WINDOWS)
    for hook in hooks:
        hook.remove()
    return {name: x.flatten(0, 1) for name, x in read.items()}


@pytest.mark.parametrize("kind", MODELS)
def test_each_block_is_calibrated_on_what_compressed_blocks_hand_on(kind):
    model = MODELS[kind]().requires_grad_(False)
    by_hand = copy.deepcopy(model)
    settings = settled("gptq", bits=3, group=16, act_order=False)
    reports = {report.name: report for report in compress_calibrated(model, settings, WINDOWS)}
    sites = find_sites(by_hand)
    assert list(reports) == [site.name for site in sites]
    for block in (0, 1):
        inside = [site.name for site in sites if site.layer == block]
        read = inputs_of(by_hand, inside)
        for name in inside:
            x, weight = read[name], weight_of(by_hand, name).clone()
            made = gptq(weight, x.T @ x / len(x), bits=3, group=16, symmetric=False, act_order=False, damping=0.01)
            got = weight_of(model, name)
            # A weight near the middle of two levels may go either way where sums differ in the last bit.
            assert ((got - made).abs() < 1e-4).float().mean() > 0.97, name
            wanted = ((x @ (weight - got).T).norm() / (x @ weight.T).norm()).item()
            assert reports[name].error == pytest.approx(wanted, rel=1e-3)
            weight_of(by_hand, name).copy_(got)


@pytest.mark.parametrize("kind", MODELS)
def test_without_text_each_site_is_rounded_and_nothing_else(kind):
    model = MODELS[kind]().requires_grad_(False)
    before = copy.deepcopy(model)
    seen = []
    reports = compress_plain(model, settled("rtn", bits=4, group=16), lambda *told: seen.append(told))
    names = {site.name for site in find_sites(model)}
    assert seen[-1] == ("layers", len(names), len(names)) and {report.name for report in reports} == names
    for name in names:
        wanted = rtn(weight_of(before, name), bits=4, group=16, symmetric=False)
        assert torch.equal(weight_of(model, name), wanted)
    others = [key for key, _ in model.named_parameters() if key.removesuffix(".weight") not in names]
    assert others and all(torch.equal(model.get_parameter(key), before.get_parameter(key)) for key in others)


def test_rounding_needs_no_text_and_is_the_same_with_one():
    plain, calibrated = (tiny.llama().requires_grad_(False) for _ in range(2))
    settings = settled("rtn", bits=3, group=16)
    by_weight = compress_plain(plain, settings)
    by_output = compress_calibrated(calibrated, settings, WINDOWS)
    for one, other in zip(plain.parameters(), calibrated.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [report.error for report in by_weight] != [report.error for report in by_output]


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
def test_half_of_the_weights_are_zero(method):
    model = tiny.llama().requires_grad_(False)
    reports = compress_calibrated(model, settled(method, sparsity=0.5), WINDOWS)
    assert all(report.zeros == 0.5 for report in reports)
    assert all((weight_of(model, report.name) == 0).float().mean() == 0.5 for report in reports)


def test_better_methods_leave_smaller_errors():
    def error(method, **settings):
        model = tiny.llama().requires_grad_(False)
        reports = compress_calibrated(model, settled(method, **settings), WINDOWS)
        return sum(report.error for report in reports) / len(reports)

    assert error("gptq", bits=3, group=16) < error("rtn", bits=3, group=16)
    assert error("sparsegpt", sparsity=0.5) < error("wanda", sparsity=0.5) < error("magnitude", sparsity=0.5)


def test_bf16_weights_are_rounded_to_bf16_and_the_error_counts_that():
    model = tiny.llama().to(torch.bfloat16).requires_grad_(False)
    exact = tiny.llama().to(torch.bfloat16).float().requires_grad_(False)
    rounded = compress_plain(model, settled("rtn", bits=8, group=16))
    fine = compress_plain(exact, settled("rtn", bits=8, group=16))
    assert all(one.error > other.error for one, other in zip(rounded, fine))
    assert model.dtype == torch.bfloat16


def test_a_model_that_hands_on_more_than_hidden_states_is_refused_untouched():
    model = tiny.llama().requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    kept = {}
    model.model.embed_tokens.register_forward_hook(lambda m, x, y: kept.update(y=y))
    model.model.layers[0].register_forward_hook(lambda m, x, y: y + kept["y"])
    with pytest.raises(NotSupportedError, match="more than hidden states"):
        compress_calibrated(model, settled("gptq", bits=4, group=16), WINDOWS)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_weight_that_is_not_finite_is_named():
    model = tiny.llama().requires_grad_(False)
    model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(NotSupportedError, match=r"layers\.1\.mlp\.up_proj holds NaN"):
        compress_plain(model, settled("rtn", bits=4, group=16))


@pytest.mark.parametrize("tokens", [WINDOWS[-1], WINDOWS[0]], ids=["seen-by-the-check", "seen-by-the-layer"])
def test_hidden_states_that_are_not_finite_are_refused(tokens):
    model = tiny.llama().requires_grad_(False)
    token = next(token for token in tokens.tolist() if (WINDOWS == token).any(dim=1).sum() == 1)
    model.model.embed_tokens.weight[token] = torch.inf
    with pytest.raises(NotSupportedError, match="--dtype float32"):
        compress_calibrated(model, settled("wanda", sparsity=0.5), WINDOWS)
