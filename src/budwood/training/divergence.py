"""KL(p₀ ‖ p) of two predictions under one frozen output head, without the logits of all tokens in memory at once.

With the hidden states h₀ and h of a token, z₀ = W h₀ + b and z = W h + b, p₀ and p their softmax:

    KL = Σ_j p₀_j (log p₀_j − log p_j),        ∂KL/∂h = Wᵀ (p − p₀).

As in `head`, both are made chunk by chunk in the forward pass, and of the second only the (n, d) gradients are kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from budwood.training.head import CHUNK_BYTES, refuse_second_derivative


def head_kl(hidden: Tensor, reference: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return KL(softmax(W h₀ + b) ‖ softmax(W h + b)), (n,), fp32, in nats.

    Only `hidden` gets a gradient, and no second one.

    Args:
        hidden: h, (n, d).
        reference: h₀, (n, d).
        weight, bias: W, (vocabulary, d), and b, (vocabulary,), frozen.
    """
    return _HeadKl.apply(hidden, reference, weight, bias)


class _HeadKl(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, reference: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        kl = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        rows = max(1, CHUNK_BYTES // (4 * len(weight)))
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            before = F.log_softmax(F.linear(reference[part], weight, bias).float(), dim=-1)
            after = F.log_softmax(F.linear(hidden[part], weight, bias).float(), dim=-1)
            share = before.exp()
            kl[part] = torch.linalg.vecdot(share, before.sub_(after))
            if gradient is not None:
                gradient[part] = after.exp_().sub_(share).to(weight.dtype) @ weight
        ctx.save_for_backward(gradient)
        return kl

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, None, None, None]:
        refuse_second_derivative()
        (gradient,) = ctx.saved_tensors
        return gradient * above[0].unsqueeze(1).to(gradient.dtype), None, None, None
