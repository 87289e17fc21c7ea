"""RecAdam: the pull on ΔW against dense matrices in float64, the annealing, and what it refuses."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel

from budwood import peft
from budwood.errors import ConfigError, NotSupportedError
from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.methods.taalm.recadam import Pair, RecAdam, find_pairs, recadam, require_no_decay
from budwood.training.plan import Plan
from budwood.training.settings import TrainingSettings
from budwood.tuning.attach import attach
from budwood.tuning.factors import lora_factors
from budwood.tuning.registry import find_tuner
from tests import tiny
from tests.methods.taalm import cases


def pair(started: bool, seed: int = 0) -> Pair:
    """A layer of 5 inputs and 4 outputs with rank 2 in float64, away from its start."""
    draw = torch.Generator().manual_seed(seed)
    make = partial(torch.randn, generator=draw, dtype=torch.float64)
    a, b, a_start = make(2, 5), make(4, 2), make(2, 5)
    b_start = make(4, 2) if started else torch.zeros(4, 2, dtype=torch.float64)
    return Pair(torch.nn.Parameter(a), torch.nn.Parameter(b), a_start, b_start, scale=1.7)


def penalty(one: Pair) -> torch.Tensor:
    """½ ‖ΔW − ΔW*‖², with the whole matrices."""
    return 0.5 * (one.scale * (one.B @ one.A - one.B_start @ one.A_start)).square().sum()


@pytest.mark.parametrize("started", [False, True])
def test_the_slopes_are_those_of_the_dense_penalty(started):
    one = pair(started)
    wanted = torch.autograd.grad(penalty(one), (one.A, one.B))
    (a, to_a), (b, to_b) = one.slopes()
    assert a is one.A and b is one.B
    torch.testing.assert_close(to_a, wanted[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(to_b, wanted[1], rtol=1e-12, atol=1e-12)


def test_of_a_fresh_adapter_half_the_square_is_the_trace_of_two_small_matrices():
    one = pair(started=False)
    small = torch.trace(one.B.T @ one.B @ one.A @ one.A.T)
    torch.testing.assert_close(penalty(one), 0.5 * one.scale**2 * small)


def test_no_matrix_of_the_size_of_the_weight_is_made():
    one = Pair(torch.ones(2, 300), torch.ones(200, 2), torch.ones(2, 300), torch.ones(200, 2), 1.0)
    made = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            made.append(result.numel())
            return result

    with Watch():
        one.slopes()
    assert max(made) <= 2 * 300


def test_a_step_is_adam_s_share_and_the_pull_s_share():
    """Against the formula of the paper, with Adam written out, over several steps."""
    one, rate, middle, pull, lr = pair(started=True), 0.7, 3.0, 0.05, 0.1
    optimiser = RecAdam([one], pull=pull, rate=rate, middle=middle, lr=lr, betas=(0.9, 0.99), eps=1e-8)
    naive = [value.detach().clone().requires_grad_() for value in (one.A, one.B)]
    moments = [(torch.zeros_like(value), torch.zeros_like(value)) for value in naive]
    target = torch.randn(4, 5, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    for step in range(1, 7):
        optimiser.zero_grad()
        (one.scale * one.B @ one.A - target).square().sum().backward()
        optimiser.step()
        loss = (one.scale * naive[1] @ naive[0] - target).square().sum()
        slopes = torch.autograd.grad(loss, naive)
        twin = Pair(*naive, one.A_start, one.B_start, one.scale)
        pulls = torch.autograd.grad(penalty(twin), naive)
        share = 1 / (1 + math.exp(-rate * (step - middle)))
        with torch.no_grad():
            for value, slope, back, (first, second) in zip(naive, slopes, pulls, moments, strict=True):
                first.mul_(0.9).add_(0.1 * slope)
                second.mul_(0.99).add_(0.01 * slope.square())
                adam = (first / (1 - 0.9**step)) / ((second / (1 - 0.99**step)).sqrt() + 1e-8)
                value -= lr * (share * adam + (1 - share) * pull * back)
    torch.testing.assert_close(one.A.detach(), naive[0].detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(one.B.detach(), naive[1].detach(), rtol=1e-9, atol=1e-12)
    assert optimiser.param_groups[0]["lr"] == lr


def test_it_goes_on_from_a_checkpoint_where_it_stopped():
    def stepped(optimiser, one, times):
        for _ in range(times):
            optimiser.zero_grad()
            (one.B @ one.A).square().sum().backward()
            optimiser.step()

    whole, cut = pair(started=True), pair(started=True)
    options = dict(pull=0.05, rate=0.5, middle=3.0, lr=0.1)
    stepped(RecAdam([whole], **options), whole, 6)
    first = RecAdam([cut], **options)
    stepped(first, cut, 3)
    second = RecAdam([cut], **options)
    second.load_state_dict(first.state_dict())
    stepped(second, cut, 3)
    assert torch.equal(whole.A, cut.A) and torch.equal(whole.B, cut.B)


def test_the_defaults_begin_with_the_pull_and_end_without():
    model = lora()
    plan = Plan(TrainingSettings(epochs=10, batch_size=2, learning_rate=3e-4), rows=8, seed=0)
    optimiser = recadam(model, plan, settings=DocumentSettings(update="recadam"), training=plan.settings)
    assert optimiser.share(10) == pytest.approx(0.5) and plan.total_steps == 40
    assert optimiser.share(1) < 0.02 and optimiser.share(40) > 0.999999
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for group in optimiser.param_groups for p in group["params"]} == trained


def lora(**changes) -> PeftModel:
    return cases.llama(LoraConfig(**(dict(r=2, target_modules=["q_proj", "v_proj"]) | changes)))


def test_pairs_are_the_factors_of_the_layers():
    model = cases.stirred(lora(rank_pattern={"v_proj": 3}, alpha_pattern={"v_proj": 12}))
    pairs, factors = find_pairs(model), list(lora_factors(model).values())
    assert len(pairs) == len(factors) == 4
    for one, wanted in zip(pairs, factors, strict=True):
        torch.testing.assert_close(one.scale * one.B @ one.A, wanted.B @ wanted.A)


@pytest.mark.parametrize("kind", ["dora", "ia3", "gift", "bias"])
def test_any_other_adapter_is_refused_with_the_reason(kind):
    peft.register()
    gift = find_tuner("gift")
    made = {
        "dora": lambda: lora(use_dora=True),
        "ia3": lambda: cases.llama(IA3Config(target_modules=["k_proj"], feedforward_modules=[])),
        "gift": lambda: attach(tiny.llama(), gift, gift.settings(rank=2), seed=0),
        "bias": lambda: lora(bias="lora_only"),
    }
    with pytest.raises(NotSupportedError, match="recadam pulls") as caught:
        find_pairs(made[kind]())
    assert "--tuner lora" in caught.value.wanted and "learner.anchor" in caught.value.action


def test_a_pull_that_overshoots_is_refused_below_where_it_does():
    model = cases.stirred(lora())
    training = TrainingSettings(learning_rate=0.1)
    plan = Plan(training, rows=8, seed=0)
    with pytest.raises(ConfigError, match=r"pull=1e\+06 overshoots") as caught:
        recadam(model, plan, settings=DocumentSettings(update="recadam", pull=1e6), training=training)
    below = float(caught.value.wanted.split()[1])
    recadam(model, plan, settings=DocumentSettings(update="recadam", pull=0.9 * below), training=training)


def test_weight_decay_beside_it_is_refused():
    with pytest.raises(ConfigError, match="with --update recadam"):
        require_no_decay(TrainingSettings(weight_decay=0.1))


def test_a_strong_pull_alone_returns_to_the_start():
    """Without a loss, and λ near 0, gradient descent on the penalty ends at ΔW*."""
    model = lora()
    pairs = find_pairs(model)
    cases.stirred(model)
    optimiser = RecAdam(pairs, pull=1.0, rate=1.0, middle=1e6, lr=0.02)
    for _ in range(400):
        for parameter in optimiser.param_groups[0]["params"]:
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
    assert max(float((one.B @ one.A).detach().abs().max()) for one in pairs) < 1e-4
