"""The closed-form meta-gradient against automatic differentiation and against finite differences."""

from __future__ import annotations

import pytest
import torch
from peft import IA3Config, LoraConfig
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close

from budwood.errors import NonFiniteError, NotSupportedError
from budwood.methods.taalm import importance as module
from budwood.methods.taalm.importance import (
    Anchor,
    by_difference,
    by_jvp,
    directional,
    exact_weight_gradient,
    inner_gradient,
    inner_loss,
    inner_step,
    moved,
    outer_gradient,
    outer_loss,
    row_norms,
    weight_gradient,
)
from budwood.methods.taalm.theta import EachRow, LoraRows, choose_theta
from tests.methods.taalm import cases

# torch's forward mode compiles decompositions with its own deprecated compiler when it is first used.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script(_method)?. is deprecated:DeprecationWarning")

RATE = 0.3
KINDS = pytest.mark.parametrize("kind", [EachRow, LoraRows])


def closed_form(theta, way, weights, rate=RATE):
    point, evidence = theta.start(3), cases.evidence()
    after = inner_step(theta, point, evidence, weights, rate)
    _, gradient = outer_gradient(theta, after, cases.probes())
    return weight_gradient(way(theta, point, evidence, gradient), weights, rate) * cases.scored()


def exact(theta, weights, rate=RATE):
    return exact_weight_gradient(theta, theta.start(3), cases.evidence(), weights, cases.probes(), rate)


def test_exact_gradient_equals_finite_differences():  # property 6
    theta, weights, h = LoraRows(cases.gpt2_lora()), cases.weights(), 1e-4

    def outer(w):
        after = inner_step(theta, theta.start(3), cases.evidence(), w, RATE)
        return outer_loss(theta, after, cases.probes()).detach()

    found = exact(theta, weights)
    for row, t in [(0, 1), (0, 11), (1, 5), (2, 9)]:
        nudge = torch.zeros_like(weights)
        nudge[row, t] = h
        slope = (outer(weights + nudge) - outer(weights - nudge))[row] / (2 * h)
        assert_close(found[row, t], slope, rtol=1e-6, atol=1e-10)


@KINDS
def test_closed_form_equals_the_exact_gradient(kind):  # property 7
    theta, weights = kind(cases.gpt2_lora()), cases.weights()
    expected = exact(theta, weights) * cases.scored()
    assert expected.abs().max() > 1e-3
    assert_close(closed_form(theta, by_jvp, weights), expected, rtol=1e-9, atol=1e-14)
    near = closed_form(theta, by_difference, weights)
    assert (cosine_similarity(near, expected, dim=1) > 0.99999).all()
    assert_close(near, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(r=4, target_modules=["q_proj", "down_proj"]),
        IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    ],
    ids=["lora", "ia3"],
)
def test_any_adapter_and_sdpa_in_fp32(config):  # property 7, on a model as users have it
    model = cases.stirred(cases.llama(config))
    assert model.config._attn_implementation == "sdpa"
    weights = cases.weights(torch.float32)
    theta = choose_theta(model)
    near = closed_form(theta, by_difference, weights)
    model.base_model.model.set_attn_implementation("eager")
    assert (cosine_similarity(near, exact(theta, weights) * cases.scored(), dim=1) > 0.999).all()


def test_weights_along_themselves_change_nothing():
    weights = cases.weights()
    found = closed_form(LoraRows(cases.gpt2_lora()), by_jvp, weights)
    assert_close((weights * found).sum(dim=1), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-15)


def test_at_a_fresh_lora_only_b_moves():
    theta = LoraRows(cases.gpt2_lora(fresh=True))
    _, gradient = outer_gradient(theta, theta.start(3), cases.probes())
    assert all((value == 0).all() for value in gradient[0::2])  # A
    assert all((value != 0).any() for value in gradient[1::2])  # B


def test_no_direction_gives_zeros():
    theta = LoraRows(cases.gpt2_lora())
    point = theta.start(3)
    assert (by_difference(theta, point, cases.evidence(), [torch.zeros_like(v) for v in point]) == 0).all()


@pytest.mark.parametrize("what", [by_jvp, exact_weight_gradient])
def test_sdpa_is_refused_where_it_cannot_be_derived(what):  # property 9
    theta = choose_theta(cases.llama(LoraConfig(target_modules=["q_proj"])))
    point, evidence = theta.start(3), cases.evidence()
    with pytest.raises(NotSupportedError, match="attention 'sdpa'") as caught:
        if what is by_jvp:
            by_jvp(theta, point, evidence, point)
        else:
            exact_weight_gradient(theta, point, evidence, cases.weights(torch.float32), cases.probes(), RATE)
    assert 'attention="eager"' in caught.value.action


def test_in_bf16_only_the_exact_way_is_taken():
    model = cases.stirred(cases.llama(LoraConfig(target_modules=["q_proj"])))
    model.base_model.model.to(torch.bfloat16)
    theta = choose_theta(model)
    point = theta.start(3)
    with pytest.raises(NotSupportedError, match="bfloat16 with the attention 'sdpa'"):
        directional(theta, point, cases.evidence(), point)
    model.base_model.model.set_attn_implementation("eager")
    found = directional(theta, point, cases.evidence(), point)
    assert torch.equal(found, by_jvp(theta, point, cases.evidence(), point)) and found.abs().max() > 0


def test_weights_by_importance_lower_the_outer_loss_more_than_uniform():  # property 10, to first order
    theta, evidence, probes = LoraRows(cases.gpt2_lora()), cases.evidence(), cases.probes()
    point = theta.start(3)
    before, gradient = outer_gradient(theta, point, probes)
    helpful = by_difference(theta, point, evidence, gradient).clamp_min(0)
    drops = []
    for weights in (helpful, cases.scored().double()):
        slope = inner_gradient(theta, point, evidence, weights)
        after = moved(point, slope, -0.03 / row_norms(slope))
        drops.append(before - outer_loss(theta, after, probes).detach())
    assert (drops[0] > drops[1]).all() and (drops[0] > 0).all()


def test_inner_loss_is_normalised_a_sequence():
    theta, weights = LoraRows(cases.gpt2_lora()), cases.weights()
    losses = inner_loss(theta, theta.start(3), cases.evidence(), weights)
    assert_close(losses, inner_loss(theta, theta.start(3), cases.evidence(), 7 * weights))


def test_an_anchor_pulls_towards_the_base():
    theta = LoraRows(cases.gpt2_lora())
    anchor = Anchor(cases.evidence(), 10.0)
    point = theta.start(3)
    plain, with_anchor = (outer_gradient(theta, point, cases.probes(), one) for one in (None, anchor))
    assert_close(plain[0], with_anchor[0])  # KL is 0 at θ0, and so is its gradient
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain[1], with_anchor[1]))
    away = [value + 0.1 for value in point]
    drift = outer_loss(theta, away, cases.probes(), anchor) - outer_loss(theta, away, cases.probes())
    for row, length in enumerate(cases.LENGTHS):
        one = {name: value[row : row + 1] for name, value in cases.evidence().items()}
        logs = [theta.logits([v[row : row + 1] for v in at], one)[0].log_softmax(-1) for at in (point, away)]
        kl = (logs[0].exp() * (logs[0] - logs[1])).sum() / (length - 1)
        assert_close(drift[row], 10 * kl, rtol=1e-5, atol=1e-6)


def test_a_probe_without_finite_loss_is_an_error(monkeypatch):
    theta = LoraRows(cases.gpt2_lora())
    monkeypatch.setattr(module, "token_losses", lambda *_: torch.full((3, 7), torch.nan, requires_grad=True))
    with pytest.raises(NonFiniteError, match="loss of a probe"):
        outer_gradient(theta, theta.start(3), cases.probes())
