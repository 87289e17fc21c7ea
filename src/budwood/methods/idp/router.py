"""A linear map from a hidden state of the base, without any prompt, to a score of each prompt.

The state is the mean over the text's tokens of what enters one of the middle layers; the pass stops there. The map is
ridge regression onto targets (contexts, m): how likely each context is behind each prompt, or labels as 0 and 1. With
standardised states E (c, d) and targets Y, both known for c contexts:

    G = E Eᵀ / d + 1        β = (G + λ I)⁻¹ Y        u(e) = e Eᵀ β / d + 1ᵀ β

λ has the smallest leave-one-out error, which has a closed form: the residual of context i is β_i / [(G + λ I)⁻¹]_ii.
Targets are taken relative to their mean over the prompts: a context that is hard behind all says nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from transformers import PreTrainedModel

from budwood.errors import DataError, NotSupportedError
from budwood.tuning.prompt_rows import positions_of

PENALTIES = tuple(10.0**power for power in range(-4, 4))  # λ, where the diagonal of E Eᵀ / d is about 1


class Router(BaseModel):
    """The fitted map: scores = (state − centre) · weight + bias.

    Attributes:
        centre: (d,).
        weight: (d, m).
        bias: (m,).
        penalty: λ.
        contexts: how many it was fitted on.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    centre: list[float]
    weight: list[list[float]]
    bias: list[float]
    penalty: float
    contexts: int

    @property
    def prompts(self) -> int:
        """The number of prompts m."""
        return len(self.bias)

    def scores(self, states: Float[Tensor, "b d"]) -> Float[Tensor, "b m"]:
        """Return the score of each prompt."""
        centre, weight, bias = (torch.tensor(x, device=states.device) for x in (self.centre, self.weight, self.bias))
        return (states - centre) @ weight + bias


def fit_router(states: Float[Tensor, "c d"], targets: Float[Tensor, "c m"]) -> Router:
    """Fit the map to targets of which larger is better.

    Raises:
        DataError: fewer than two contexts.
    """
    if len(states) < 2:
        raise DataError(f"{len(states)} contexts to fit a router on", wanted="2 at least, 60 for good choices")
    states, targets = states.double(), targets.double()
    targets = targets - targets.mean(dim=1, keepdim=True)
    centre, scale = states.mean(dim=0), states.std(dim=0)
    scale = torch.where(scale > 0, scale, torch.inf)  # a feature that never changes says nothing
    standardised = (states - centre) / scale
    width = states.shape[1]
    penalty, beta = _solve(standardised @ standardised.T / width + 1, targets)
    weight = standardised.T @ beta / width / scale[:, None]
    return Router(
        centre=centre.tolist(),
        weight=weight.tolist(),
        bias=beta.sum(dim=0).tolist(),
        penalty=penalty,
        contexts=len(states),
    )


def _solve(kernel: Float[Tensor, "c c"], targets: Float[Tensor, "c m"]) -> tuple[float, Float[Tensor, "c m"]]:
    """Return the λ with the smallest leave-one-out error, and its β."""
    values, vectors = torch.linalg.eigh(kernel)
    tried = []
    for penalty in PENALTIES:
        inverse = vectors / (values.clamp_min(0) + penalty) @ vectors.T
        beta = inverse @ targets
        error = (beta / inverse.diagonal()[:, None]).square().sum()
        tried.append((float(error), penalty, beta))
    _, penalty, beta = min(tried, key=lambda one: one[0])
    return penalty, beta


class _Enough(Exception):
    """The state has been seen; the layers above are not needed."""


@torch.no_grad()
def pooled_states(
    model: PreTrainedModel, input_ids: Int[Tensor, "b t"], mask: Int[Tensor, "b t"], depth: float
) -> Float[Tensor, "b d"]:
    """Return the mean over each row's tokens of the hidden state that enters a layer, in fp32.

    Args:
        mask: 1 on tokens, 0 on pads, on either side.
        depth: the share of the layers below it, in [0, 1).
    """
    blocks = decoder_blocks(model)
    seen: list[Tensor] = []

    def stop(_: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        seen.append(inputs[0] if inputs else named["hidden_states"])
        raise _Enough

    hook = blocks[int(depth * len(blocks))].register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with contextlib.suppress(_Enough):
            model(input_ids=input_ids, attention_mask=mask, use_cache=False, **positions_of(model, mask))
    finally:
        hook.remove()
    return torch.einsum("btd,bt->bd", seen[0].float(), mask / mask.sum(1, keepdim=True))


def decoder_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """Return the list of the model's layers.

    Raises:
        NotSupportedError: it keeps them in another way.
    """
    count = model.config.get_text_config().num_hidden_layers
    found = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    if not found:
        raise NotSupportedError(
            f"{type(model).__name__} has no list of {count} layers", action='choose by "likelihood" instead'
        )
    return found[0]
