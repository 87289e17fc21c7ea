"""Weights and inputs to compress: inputs that are correlated, and not all of one size, as those of layers are."""

from __future__ import annotations

import torch
from torch import Tensor


def case(d_out: int, d_in: int, *, seed: int = 0, tokens: int = 256) -> tuple[Tensor, Tensor]:
    """Return W (d_out, d_in) and the inputs X (tokens, d_in), in float64."""
    made = torch.Generator().manual_seed(seed)
    weight = torch.randn(d_out, d_in, generator=made, dtype=torch.float64)
    mixing = torch.randn(d_in, d_in, generator=made, dtype=torch.float64) + 2 * torch.eye(d_in)
    sizes = torch.logspace(-1, 0.5, d_in, dtype=torch.float64)[torch.randperm(d_in, generator=made)]
    return weight, torch.randn(tokens, d_in, generator=made, dtype=torch.float64) @ mixing * sizes


def gram_of(x: Tensor) -> Tensor:
    return x.T @ x / len(x)


def loss(weight: Tensor, compressed: Tensor, x: Tensor) -> float:
    """The squared error of the layer's output, summed over tokens."""
    return (x @ (weight - compressed).T).square().sum().item()
