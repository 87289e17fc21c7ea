"""How likely a text is behind each prompt of a bank: m passes over the text, which share the prompts' keys and values
where the base lets them be cached, and have each prompt in front of the text where it does not.

The score of prompt i is the mean of ℓ_t over the tokens of the text, in nats, the first token included: the last
vector of the prompt predicts it. Only the given text is read. What the winning pass left in the cache is kept row by
row, so that going on costs nothing more: m passes in all, where one prompt alone would need one (m + 1 without cached
prompts).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache

from budwood.methods.idp.runtime import Runtime


@torch.no_grad()
def likelihood_pass(
    runtime: Runtime,
    input_ids: Int[Tensor, "b t"],
    mask: Int[Tensor, "b t"],
    *,
    tokens: int | None = None,
    keep: bool = True,
) -> tuple[Float[Tensor, "b m"], DynamicCache | None]:
    """Return the mean NLL a token of each row behind each prompt, and the cache of the best one of each row.

    Args:
        mask: 1 on tokens, 0 on pads, on either side.
        tokens: score only so many tokens at the start of each row; then there is no cache.
        keep: whether to keep the cache, where there is one.
    """
    if tokens is not None:
        input_ids, mask, keep = *_beginning(input_ids, mask, tokens), False
    scores: list[Float[Tensor, " b"]] = []
    kept: DynamicCache | None = None
    for number, selection in enumerate(runtime.all_prompts(len(input_ids))):
        output, cache = runtime.run(selection, input_ids, mask)
        scores.append(mean_nll(output.logits, runtime.first_logits(number), input_ids, mask))
        if keep and cache is not None:
            kept = cache if kept is None else _better_rows(kept, cache, scores[-1] < torch.stack(scores[:-1]).amin(0))
    return torch.stack(scores, dim=1), kept


def mean_nll(
    logits: Float[Tensor, "b t vocabulary"],
    first: Float[Tensor, " vocabulary"],
    input_ids: Int[Tensor, "b t"],
    mask: Int[Tensor, "b t"],
) -> Float[Tensor, " b"]:
    """Return the mean NLL of each row's tokens in nats; `first` predicts the first token of each row."""
    rows = torch.arange(len(input_ids), device=input_ids.device)
    start = mask.argmax(dim=1)  # the first of the largest
    total = cross_entropy(first.expand(len(rows), -1), input_ids[rows, start], reduction="none")
    for row in range(len(rows)):  # one at a time, so that fp32 logits of the whole batch never exist
        follows = (mask[row, :-1] & mask[row, 1:]).bool()
        nll = cross_entropy(logits[row, :-1][follows].float(), input_ids[row, 1:][follows], reduction="sum")
        total[row] += nll
    return total / mask.sum(dim=1)


def _beginning(
    input_ids: Int[Tensor, "b t"], mask: Int[Tensor, "b t"], tokens: int
) -> tuple[Int[Tensor, "b k"], Int[Tensor, "b k"]]:
    """Return the first tokens of each row, with the pads of shorter rows on the right."""
    order = mask.argsort(dim=1, descending=True, stable=True)[:, :tokens]
    return input_ids.gather(1, order), mask.gather(1, order)


def _better_rows(kept: DynamicCache, new: DynamicCache, better: Tensor) -> DynamicCache:
    """Return `kept` with the rows of `new` where these are better."""
    rows = better[:, None, None, None]
    for old_layer, new_layer in zip(kept.layers, new.layers, strict=True):
        old_layer.keys = torch.where(rows, new_layer.keys, old_layer.keys)
        old_layer.values = torch.where(rows, new_layer.values, old_layer.values)
    return kept
