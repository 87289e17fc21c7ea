"""Rounding to grids, against a loop over single numbers and against the promises of the formula."""

from __future__ import annotations

import pytest
import torch

from budwood.compression.grids import fit_grid, rtn
from tests.compression.matrices import case


def naive(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> torch.Tensor:
    """Every level of every grid is tried for every weight."""
    made = torch.empty_like(weight)
    for row in range(weight.shape[0]):
        for start in range(0, weight.shape[1], group):
            part = weight[row, start : start + group]
            low, high = min(0.0, part.min().item()), max(0.0, part.max().item())
            if symmetric:
                high = max(high, -low)
                low = -high
            step = torch.tensor((high - low) / (2**bits - 1), dtype=torch.float16).double()
            zero = 2 ** (bits - 1) if symmetric else round(-low / step.item())
            levels = step * (torch.arange(2**bits).double() - zero)
            for i, value in enumerate(part):
                made[row, start + i] = levels[(levels - value).abs().argmin()]
    return made


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("bits", "group"), [(4, 4), (3, 8), (2, 16)])
def test_each_weight_becomes_the_nearest_level(bits, group, symmetric):
    weight, _ = case(6, 16)
    assert torch.equal(rtn(weight, bits=bits, group=group, symmetric=symmetric), naive(weight, bits, group, symmetric))


@pytest.mark.parametrize("symmetric", [False, True])
def test_zeros_stay_zeros_and_a_group_of_zeros_is_no_accident(symmetric):
    weight, _ = case(4, 16)
    weight[:, ::3] = 0
    weight[1] = 0
    weight[2, :8] = 1e-12  # a step that fp16 cannot hold
    made = rtn(weight, bits=3, group=8, symmetric=symmetric)
    assert torch.isfinite(made).all()
    assert (made[weight == 0] == 0).all() and (made[2, :8] == 0).all()


def test_the_error_is_at_most_half_a_step_and_falls_with_bits():
    weight, _ = case(8, 64)
    worst = []
    for bits in (2, 3, 4, 8):
        error = (rtn(weight, bits=bits, group=16, symmetric=False) - weight).abs().unflatten(1, (-1, 16))
        step = fit_grid(weight.unflatten(1, (-1, 16)), bits, symmetric=False).step
        assert (error <= 0.502 * step + 1e-9 + 2**bits * step * 2**-11).all()  # the step itself is rounded
        worst.append(error.max().item())
    assert worst == sorted(worst, reverse=True)


@pytest.mark.parametrize("symmetric", [False, True])
def test_rounding_what_is_rounded_changes_nothing_much(symmetric):
    weight, _ = case(4, 32)
    once = rtn(weight, bits=4, group=16, symmetric=False)
    grid = fit_grid(weight.unflatten(1, (-1, 16)), 4, symmetric=False)
    assert torch.equal(grid.round(once.unflatten(1, (-1, 16))).flatten(1), once)
    levels = [len(group.unique()) for row in once.unflatten(1, (-1, 16)) for group in row]
    assert max(levels) <= 16
