"""Scores from the tokens of one tokenizer to those of another, by the characters they share.

A token of the base gets the largest score among the tokens of the encoder that share a character with it, so the best
word of a text stays the best. A token that shares none (white space alone, or text that the encoder has cut off) gets
the lowest score of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from budwood.data.offsets import Span

NONE = -1  # in a map: no such token


def overlap_map(spans: Sequence[Span], others: Sequence[Span]) -> Int[Tensor, "T most"]:
    """Return for each of `spans` the indices of the `others` that share a character with it, filled up with -1.

    Args:
        spans: of the base's T tokens, in the order of the text; (0, 0) for none.
        others: of the encoder's tokens; as above. Several tokens may share a character (bytes of one letter).
    """
    found = []
    for start, stop in spans:
        found.append([i for i, (first, last) in enumerate(others) if max(start, first) < min(stop, last)])
    most = max((len(one) for one in found), default=0) or 1
    return torch.tensor([one + [NONE] * (most - len(one)) for one in found], dtype=torch.long).reshape(-1, most)


def carried(scores: Float[Tensor, " others"], mapping: Int[Tensor, "T most"]) -> Float[Tensor, " T"]:
    """Return a score for each token of the base; gradients pass to the scores that were chosen."""
    taken = torch.where(mapping == NONE, -torch.inf, scores[mapping.clamp_min(0)])
    best = taken.amax(dim=1)
    return torch.where(best == -torch.inf, scores.min(), best)
