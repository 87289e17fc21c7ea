"""GPTQ and SparseGPT in float64: against least squares for each column, all choices, and rounding alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from budwood.compression import surgeon
from budwood.compression.grids import fit_grid, rtn
from budwood.compression.masks import magnitude, wanda
from budwood.compression.settings import Pattern
from budwood.compression.surgeon import gptq, sparsegpt
from tests.compression.matrices import case, gram_of, loss

QUANTISED = dict(bits=3, group=8, symmetric=False, act_order=False, damping=0.01)


def damped(gram: Tensor, damping: float = 0.01) -> Tensor:
    return gram + damping * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)


def remaining(weight: Tensor, settled: Tensor, h: Tensor) -> Tensor:
    """The best columns after the settled ones: the minimum of tr(Δ H Δᵀ), solved anew from the original weights."""
    k = settled.shape[1]
    return weight[:, k:] + (weight[:, :k] - settled) @ h[:k, k:] @ torch.linalg.inv(h[k:, k:])


def naive_gptq(weight: Tensor, gram: Tensor, group: int, bits: int, symmetric: bool) -> Tensor:
    h, settled, grid = damped(gram), weight[:, :0], None
    for j in range(weight.shape[1]):
        rest = remaining(weight, settled, h)
        if j % group == 0:
            grid = fit_grid(rest[:, :group], bits, symmetric=symmetric)
        settled = torch.cat([settled, grid.round(rest[:, :1])], dim=1)
    return settled


def naive_sparsegpt(weight: Tensor, gram: Tensor, size: int, sparsity: float, rows_choose: bool) -> Tensor:
    h, settled, keep = damped(gram), weight[:, :0], None
    for j in range(weight.shape[1]):
        rest = remaining(weight, settled, h)
        if j % size == 0:
            block = rest[:, :size]
            costs = torch.stack(
                [block[:, i] ** 2 / torch.linalg.inv(h[j + i :, j + i :])[0, 0] for i in range(block.shape[1])], 1
            )
            rivals = costs if rows_choose else costs.reshape(1, -1)
            limit = rivals.sort(dim=1).values[:, round(sparsity * rivals.shape[1])]
            keep = (rivals >= limit[:, None]).reshape(costs.shape)
        settled = torch.cat([settled, rest[:, :1] * keep[:, j % size, None]], dim=1)
    return settled


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [4, 8, 24])
def test_gptq_is_least_squares_after_each_column(group, symmetric):
    weight, x = case(6, 24)
    made = gptq(weight, gram_of(x), **QUANTISED | {"group": group, "symmetric": symmetric})
    assert torch.allclose(made, naive_gptq(weight, gram_of(x), group, 3, symmetric), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("group", "size"), [(8, 4), (8, 8), (24, 12), (24, 5)])
def test_blocks_change_nothing(monkeypatch, group, size):
    weight, x = case(6, 24)
    for act_order in (False, True):
        settings = QUANTISED | {"group": group, "act_order": act_order}
        whole = gptq(weight, gram_of(x), **settings)
        with monkeypatch.context() as patch:
            patch.setattr(surgeon, "BLOCK", size)
            assert torch.allclose(gptq(weight, gram_of(x), **settings), whole, rtol=1e-9, atol=1e-9)


def test_act_order_is_gptq_on_the_untouched_grids_with_columns_in_another_order():
    weight, x = case(6, 24)
    gram = gram_of(x)
    order = gram.diagonal().argsort(descending=True)
    grids = fit_grid(weight.unflatten(1, (-1, 8)), 3, symmetric=False)
    h, settled = damped(gram)[order][:, order], weight[:, :0]
    for j in range(24):
        rest = remaining(weight[:, order], settled, h)[:, :1]
        every = torch.zeros_like(weight)
        every[:, order[j]] = rest[:, 0]
        rounded = grids.round(every.unflatten(1, (-1, 8))).flatten(1)[:, order[j]]
        settled = torch.cat([settled, rounded[:, None]], dim=1)
    made = gptq(weight, gram, **QUANTISED | {"act_order": True})
    assert torch.allclose(made[:, order], settled, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_gptq_loses_less_than_rounding(seed, bits, act_order):
    weight, x = case(16, 64, seed=seed)
    settings = dict(bits=bits, group=16, symmetric=False)
    made = gptq(weight, gram_of(x), **settings, act_order=act_order, damping=0.01)
    assert loss(weight, made, x) < loss(weight, rtn(weight, **settings), x)


def test_one_column_is_rounded_and_the_last_takes_the_best_level():
    """A layer of one input is the closed form; in a layer of two, all levels of the second are tried."""
    weight, x = case(4, 1)
    assert torch.equal(
        gptq(weight, gram_of(x), **QUANTISED | {"group": 1}), rtn(weight, bits=3, group=1, symmetric=False)
    )
    weight, x = case(8, 2)
    made = gptq(weight, gram_of(x), **QUANTISED | {"group": 2, "damping": 1e-12})
    grid = fit_grid(weight, 3, symmetric=False)
    assert torch.equal(made[:, :1], grid.round(weight[:, :1]))
    for row in range(8):
        levels = grid.step[row] * (torch.arange(8) - grid.zero[row])
        tried = [loss(weight[row][None], torch.stack([made[row, 0], level])[None], x) for level in levels]
        assert loss(weight[row][None], made[row][None], x) == pytest.approx(min(tried))


def test_uncorrelated_inputs_leave_nothing_to_make_up():
    weight, _ = case(4, 16)
    gram = torch.diag(torch.linspace(0.1, 2, 16, dtype=torch.float64))
    assert torch.equal(gptq(weight, gram, **QUANTISED), rtn(weight, bits=3, group=8, symmetric=False))


@pytest.mark.parametrize(("pattern", "size"), [(None, 24), (None, 10), (Pattern(2, 4), 4), (Pattern(1, 4), 4)])
def test_sparsegpt_is_least_squares_after_each_column(monkeypatch, pattern, size):
    weight, x = case(6, 24)
    sparsity = 1 - pattern.kept / pattern.of if pattern else 0.5
    monkeypatch.setattr(surgeon, "BLOCK", size)
    made = sparsegpt(weight, gram_of(x), sparsity=sparsity, pattern=pattern, damping=0.01)
    wanted = naive_sparsegpt(weight, gram_of(x), size, sparsity, rows_choose=pattern is not None)
    assert torch.allclose(made, wanted, rtol=1e-9, atol=1e-9)
    assert torch.equal(made == 0, wanted == 0)


@pytest.mark.parametrize("pattern", [None, Pattern(2, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_sparsegpt_loses_less_than_masks_alone(seed, pattern):
    weight, x = case(16, 64, seed=seed)
    gram = gram_of(x)
    made = sparsegpt(weight, gram, sparsity=0.5, pattern=pattern, damping=0.01)
    assert (made == 0).double().mean() == 0.5
    if pattern:
        assert ((made.unflatten(1, (-1, 4)) != 0).sum(-1) == 2).all()
    assert loss(weight, made, x) < loss(weight, wanda(weight, gram, sparsity=0.5, pattern=pattern), x)
    assert loss(weight, made, x) < loss(weight, magnitude(weight, sparsity=0.5, pattern=pattern), x)


def test_inputs_that_never_occur_are_the_first_to_go():
    weight, x = case(4, 16)
    x[:, ::2] = 0
    made = sparsegpt(weight, gram_of(x), sparsity=0.5, pattern=None, damping=0.01)
    assert loss(weight, made, x) < 0.1 * loss(weight, torch.zeros_like(weight), x)
    untouched = gptq(weight, torch.zeros(16, 16, dtype=torch.float64), **QUANTISED)
    assert torch.equal(untouched, rtn(weight, bits=3, group=8, symmetric=False))


def test_the_weights_given_are_not_changed():
    weight, x = case(4, 16)
    kept = weight.clone()
    gptq(weight, gram_of(x), **QUANTISED)
    sparsegpt(weight, gram_of(x), sparsity=0.5, pattern=None, damping=0.01)
    assert torch.equal(weight, kept)
