"""H: the mean of x xᵀ, shared where layers share their input; the error it gives; its inverse's factor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from budwood.compression.grams import Gram, Watch, inverse_factor, relative_error
from budwood.errors import NotSupportedError
from tests.compression.matrices import case, gram_of


def test_parts_sum_to_the_whole():
    _, x = case(1, 8)
    gram = Gram(8)
    for part in x.split(100):
        gram.add(part.unsqueeze(0))
    assert gram.tokens == 256
    assert torch.allclose(gram.mean(), gram_of(x), rtol=1e-12)
    assert torch.equal(Gram(8).mean(), torch.zeros(8, 8))


def test_bf16_inputs_are_summed_in_fp32():
    x = torch.full((4096, 1), 1.0, dtype=torch.bfloat16)  # in bf16 the sum would stand still at 256
    gram = Gram(1)
    gram.add(x)
    assert gram.mean().item() == 1.0


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.idle = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        return self.c(self.a(x) + self.b(x))


def test_layers_that_read_one_tensor_share_one_gram():
    torch.manual_seed(0)
    model, first, second = Two(), torch.randn(5, 4), torch.randn(7, 4)
    layers = dict(model.named_children())
    with Watch().on(layers, dict.fromkeys(layers, 4)) as watch:
        for x in (first, second):
            watch.next_pass()
            model(x)
    both = torch.cat([first, second])
    assert torch.allclose(watch.of("a"), gram_of(both), atol=1e-6)
    assert torch.equal(watch.of("b"), watch.of("a"))
    assert torch.allclose(watch.of("c"), gram_of((model.a(both) + model.b(both)).detach()), atol=1e-6)
    with pytest.raises(NotSupportedError, match="idle is never called"):
        watch.of("idle")
    model(first)
    assert torch.allclose(watch.of("a"), gram_of(both), atol=1e-6)  # nobody watches any more


def test_the_error_is_that_of_the_outputs():
    weight, x = case(5, 8)
    other = weight + 0.1 * torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = (x @ (weight - other).T).norm() / (x @ weight.T).norm()
    assert relative_error(weight, other, gram_of(x)) == pytest.approx(wanted.item())
    assert relative_error(weight, other) == pytest.approx(((weight - other).norm() / weight.norm()).item())
    assert relative_error(weight, weight, gram_of(x)) == 0
    assert relative_error(torch.zeros(2, 8), torch.ones(2, 8)) == 0


def test_the_factor_is_that_of_the_damped_inverse():
    _, x = case(1, 8)
    gram = gram_of(x)
    upper = inverse_factor(gram, 0.1)
    damped = gram + 0.1 * gram.diagonal().mean() * torch.eye(8)
    assert torch.equal(upper, upper.triu())
    assert torch.allclose(upper.T @ upper, torch.linalg.inv(damped))


def test_inputs_that_never_occur_are_left_alone():
    assert torch.equal(inverse_factor(torch.zeros(3, 3), 0.01), torch.eye(3))
    _, x = case(1, 4)
    x[:, 2] = 0
    upper = inverse_factor(gram_of(x), 0.01)
    assert upper[2, 3] == 0 and (upper[:2, 2] == 0).all()


def test_an_ill_conditioned_gram_gets_more_damping_and_nan_is_refused():
    row = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(inverse_factor(row.T @ row, 1e-9)).all()
    with pytest.raises(NotSupportedError, match="not finite"):
        inverse_factor(torch.full((3, 3), torch.nan), 0.01)
