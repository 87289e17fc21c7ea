"""KL under a frozen head, chunk by chunk, against the plain formula in float64."""

import pytest
import torch
from torch.nn import functional as F

from budwood.errors import NotSupportedError
from budwood.training import divergence
from budwood.training.divergence import head_kl


def naive(hidden, reference, weight, bias):
    before = F.log_softmax(F.linear(reference, weight, bias), dim=-1)
    after = F.log_softmax(F.linear(hidden, weight, bias), dim=-1)
    return (before.exp() * (before - after)).sum(dim=-1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_values_and_gradient_are_those_of_the_formula(monkeypatch, bias, rows):
    monkeypatch.setattr(divergence, "CHUNK_BYTES", 4 * 13 * rows)
    draw = torch.Generator().manual_seed(0)
    hidden, reference = (torch.randn(11, 6, generator=draw, dtype=torch.float64) for _ in range(2))
    weight, shift = (torch.randn(*size, generator=draw, dtype=torch.float64) for size in ((13, 6), (13,)))
    above = torch.randn(11, generator=draw, dtype=torch.float64)
    exact, found = hidden.clone().requires_grad_(), hidden.float().requires_grad_()
    wanted = naive(exact, reference, weight, shift if bias else None)
    kl = head_kl(found, reference.float(), weight.float(), shift.float() if bias else None)
    (wanted * above).sum().backward()
    (kl * above.float()).sum().backward()
    torch.testing.assert_close(kl.double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.grad.double(), exact.grad, rtol=1e-5, atol=1e-6)


def test_it_is_nothing_where_nothing_moved_and_where_there_is_no_token():
    hidden, weight = torch.randn(5, 4).requires_grad_(), torch.randn(9, 4)
    kl = head_kl(hidden, hidden.detach(), weight, None)
    kl.sum().backward()
    assert torch.equal(kl, torch.zeros(5)) and torch.equal(hidden.grad, torch.zeros(5, 4))
    none = hidden.detach()[:0].requires_grad_()
    head_kl(none, none.detach(), weight, None).sum().backward()
    assert none.grad.shape == (0, 4)


def test_there_is_no_second_derivative():
    hidden = torch.randn(2, 4).requires_grad_()
    kl = head_kl(hidden, torch.randn(2, 4), torch.randn(9, 4), None).sum()
    with pytest.raises(NotSupportedError, match="second derivative"):
        torch.autograd.grad(kl, hidden, create_graph=True)
