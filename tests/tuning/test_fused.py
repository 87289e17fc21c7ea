"""The inner loop against a naive float64 version, in each of its branches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from budwood.tuning.fused import FEW_ROWS, add_low_rank

D, R, SCALE = 48, 6, 0.7


def draw(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    made = [torch.randn(shape, generator=generator) for shape in ((2, rows, D), (D, R), (R, D))]
    return made[0].to(dtype), made[1] / R**0.5, made[2] / D**0.5


def naive(y: Tensor, v: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return y.double() + SCALE * (v.double() @ down.double().T) @ up.double().T


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("rows", [1, FEW_ROWS], ids=["few", "many"])
def test_fp32_and_fp64_equal_the_formula(rows: int, grad: bool) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        y, up, down = draw(rows, dtype)
        up, down = up.to(dtype), down.to(dtype)
        with torch.set_grad_enabled(grad):
            found = add_low_rank(y, y, up, down, SCALE)
        torch.testing.assert_close(found.double(), naive(y, y, up, down), rtol=0, atol=tolerance)
        assert found.dtype == dtype


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("rows", [1, FEW_ROWS], ids=["few", "many"])
def test_bf16_products_add_little_to_the_rounding_of_the_result(rows: int, grad: bool) -> None:
    """An edit is small against what it edits: here a tenth of it, a large one."""
    y, up, down = draw(rows, torch.bfloat16)
    up = up / 7
    with torch.set_grad_enabled(grad):
        found = add_low_rank(y, y, up, down, SCALE)
    wanted = naive(y, y, up, down)
    rounding = (wanted.bfloat16().double() - wanted).square().mean().sqrt()
    assert found.dtype == torch.bfloat16
    assert (found.double() - wanted).square().mean().sqrt() < 1.1 * rounding


def test_gradients_in_bf16_reach_the_fp32_map() -> None:
    y, up, down = draw(FEW_ROWS, torch.bfloat16)
    wide_up, wide_down = up.double().requires_grad_(), down.double().requires_grad_()
    up.requires_grad_(), down.requires_grad_()
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    (add_low_rank(y, y, up, down, SCALE) * weight).sum().backward()
    (naive(y, y, wide_up, wide_down) * weight.double()).sum().backward()
    for found, wanted in ((up.grad, wide_up.grad), (down.grad, wide_down.grad)):
        assert found is not None and wanted is not None and found.dtype == torch.float32
        assert torch.cosine_similarity(found.double().flatten(), wanted.flatten(), 0) > 0.9999


def test_several_adapters_are_summed_up_wide() -> None:
    """y is fp32 already, as after the first of two adapters; only v is bf16."""
    v, up, down = draw(FEW_ROWS, torch.bfloat16)
    y = v.float()
    found = add_low_rank(y, v, up, down, SCALE)
    torch.testing.assert_close(found.double(), naive(y, v, up, down), rtol=0, atol=1e-5)


def test_autocast_keeps_the_dtype_of_y() -> None:
    y, up, down = draw(4, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = add_low_rank(y, y, up, down, SCALE)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), naive(y, y, up, down), rtol=0, atol=0.05)
