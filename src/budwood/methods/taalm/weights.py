"""From the scores of a text to the weights of its tokens' losses.

    w_t = exp((f_t − max_s f_s) / τ), 0 where that is below the cut-off;
    (1 − ε) w_t / Σ w + ε / n on the n scored tokens, times n.

Each document stands for itself: the mean weight of its scored tokens is 1, so a document counts by its length under a
loss normalised over tokens, and alike under one normalised over sequences. The largest score always has weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from budwood.errors import NonFiniteError
from budwood.methods.taalm.passages import Passage
from budwood.methods.taalm.row_cache import RowCache
from budwood.methods.taalm.scorer import Scorer
from budwood.methods.taalm.settings import WeightSettings


def token_weights(passage: Passage, scores: Float[Tensor, " T"], settings: WeightSettings) -> Float[Tensor, " T"]:
    """Return the loss weights of a text: 0 outside its scored tokens, with mean 1 over them.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    places = list(passage.scored)
    weights = torch.zeros(len(scores))
    if not places:
        return weights
    inside = scores[places].detach().double()
    if not bool(torch.isfinite(inside).all()):
        raise NonFiniteError(f"{passage.encoded.origin}: the scorer gave {inside.tolist()}", wanted="finite scores")
    raw = ((inside - inside.max()) / settings.temperature).exp()
    return mixed(passage, weights.index_put((torch.tensor(places),), raw.float()), settings)


def mixed(passage: Passage, weights: Float[Tensor, " T"], settings: WeightSettings) -> Float[Tensor, " T"]:
    """Return any weights of a text with cut-off, floor and mean 1; uniform where all are 0."""
    places = list(passage.scored)
    raw = weights[places].double()
    raw = torch.where(raw < settings.cut_off * raw.max(), 0, raw)
    even = torch.full_like(raw, 1 / len(places))
    share = raw / raw.sum() if raw.sum() > 0 else even
    final = ((1 - settings.floor) * share + settings.floor * even) * len(places)
    return torch.zeros_like(weights).index_put((torch.tensor(places),), final.float())


def cached_scores(scorer: Scorer, passages: Sequence[Passage], cache: RowCache) -> list[Float[Tensor, " T"]]:
    """Return the scores of passages, from the cache if they were computed before.

    Args:
        scorer: asked for the passages that the cache does not hold.
        passages: what to score.
        cache: its name is to say which scorer this is and on which base.

    Raises:
        StorageError: the disk failed.
    """
    contents = [[passage.text, passage.encoded.input_ids, passage.scored] for passage in passages]
    return cache.rows(contents, lambda chosen: scorer.scores([passages[i] for i in chosen]))
