"""How much a text attends to each prompt where one pass cannot hold them all: m rows, each prompt with the text alone.

`attention_scores` puts the cached prompts side by side. Where they cannot be cached (sliding windows, ALiBi), or
where attention is no plain softmax (soft caps, sinks), each prompt stands in front of a copy of the text, and the
base's own attention is read. With the letters of `attention_scores`,

    a_{t,j}  = attention of t to key j of prompt i and of the text up to t: of this row alone
    u_i      = mean over t and heads of Σ_{j in P_i, j ≥ k} a_{t,j} / (n_i − k), or without the divisor

So prompts do not compete under one softmax; with a single prompt the two forms are equal. Every layer is exact here,
at the cost of m passes that keep (b, h, t, t) numbers a layer. What lies outside a layer's window counts 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from budwood.methods.idp.runtime import Runtime
from budwood.methods.idp.support import require_skip, unreadable
from budwood.tuning.prompt_rows import JoinedRows

SLACK = 1e-2  # by which the attention of a token may add up to more than 1 in 16 bits


@torch.no_grad()
def attention_row_scores(
    runtime: Runtime,
    input_ids: Int[Tensor, "b t"],
    mask: Int[Tensor, "b t"],
    layers: Sequence[int],
    *,
    per_key: bool = True,
    skip_first: int = 0,
    by_head: bool = False,
) -> Float[Tensor, "b l m"] | Float[Tensor, "b l h m"]:
    """Return the scores of all prompts at each of `layers`, in fp32; the arguments are those of `attention_scores`.

    Raises:
        NotSupportedError: a base that shows no attention, or not of all its layers.
        ConfigError: `skip_first` leaves nothing of a prompt.
    """
    require_skip([len(prompt.vectors) for prompt in runtime.prompts], skip_first)
    rows, scores = runtime.rows(), []
    with _showing_attention(runtime.model):
        for selection in runtime.all_prompts(len(input_ids)):
            joined = rows.join(selection, input_ids, mask)
            attentions = _checked(runtime.model, rows.run_joined(joined, output_attentions=True))
            member = joined.prompt_slots(skip_first)
            member = member / member.sum(dim=1, keepdim=True) if per_key else member
            scores.append(torch.stack([_score(attentions[layer], joined, member) for layer in layers], dim=1))
    found = torch.stack(scores, dim=3)
    return found if by_head else found.mean(dim=2)


def _score(
    attention: Float[Tensor, "b h slots slots"], rows: JoinedRows, member: Float[Tensor, "b slots"]
) -> Float[Tensor, "b h"]:
    """Return each head's mean over text tokens of what the prompt's keys get, weighted by `member`."""
    per_token = torch.einsum("bhqk,bk->bhq", attention.float(), member)
    return torch.einsum("bhq,bq->bh", per_token, rows.text_slots().float()) / rows.texts[:, None]


def _checked(model: PreTrainedModel, output: Any) -> Sequence[Float[Tensor, "b h slots slots"]]:
    """Return the attention of all layers, once it looks like shares of the keys."""
    found = getattr(output, "attentions", None) or ()
    if len(found) != model.config.get_text_config().num_hidden_layers or any(one is None for one in found):
        raise unreadable(f"{type(model).__name__} shows it for {len(found)} of its layers")
    for one in found:
        if one.ndim != 4 or one.min() < 0 or one.sum(dim=-1).max() > 1 + SLACK:
            raise unreadable(f"what {type(model).__name__} shows is no attention: not shares of at most 1 in all")
    return found


@contextlib.contextmanager
def _showing_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let the model attend in the form that shows its attention, and put its own back afterwards."""
    before = model.config._attn_implementation
    if not model._can_set_attn_implementation():
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
