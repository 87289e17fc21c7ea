"""A weight that cannot be read, used through the layer that holds it.

Some quantised layers (GPTQ, AWQ and their like) compute W x + b and do not give W back. Products with W can be had all
the same: W M column by column from forward passes, M W from the gradient with respect to the input.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from budwood.errors import NotSupportedError
from budwood.models.quantised import floating_tensor, unbiased


class OpaqueWeight:
    """W (d_out, d_in) of a linear layer that is run instead of read; results are fp32.

    They are as exact as the layer's own arithmetic: most such layers compute in 16 bits.

    Args:
        layer: maps x (n, d_in) to W x + b.
        in_features: d_in.
    """

    def __init__(self, layer: nn.Module, in_features: int) -> None:
        self._layer, self._in_features = layer, in_features
        example = floating_tensor(layer)
        self.device, self._dtype = example.device, example.dtype
        self.dtype = torch.float32

    @torch.no_grad()
    def __matmul__(self, right: Float[Tensor, "d_in r"]) -> Float[Tensor, "d_out r"]:
        """Return W M: the layer's answers to the columns of M, without its bias."""
        with unbiased(self._layer):
            return self._layer(right.T.to(self.device, self._dtype)).float().T

    def __rmatmul__(self, left: Float[Tensor, "r d_out"]) -> Float[Tensor, "r d_in"]:
        """Return M W: the gradient of ⟨M, W x + b⟩ with respect to x."""
        x = torch.zeros(len(left), self._in_features, device=self.device, dtype=self._dtype, requires_grad=True)
        with torch.enable_grad():
            y = self._layer(x)
        if not y.requires_grad:
            raise NotSupportedError(
                f"a {type(self._layer).__name__} layer neither gives its weight back nor a gradient of its input",
                wanted="a base whose weights can be read, or whose layers can be trained through",
                action="load the unquantised base for exporting",
            )
        (gradient,) = torch.autograd.grad(y, x, left.to(y.device, y.dtype))
        return gradient.float()
