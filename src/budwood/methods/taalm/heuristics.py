"""Rules that weight tokens without having learned to: baselines, and what a learned scorer has to beat.

Each takes what it needs to know of the T tokens of one text and returns their weights, (T,), at least 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from budwood.data.offsets import Span
from budwood.errors import ConfigError
from budwood.methods.taalm.passages import Passage


def uniform(passage: Passage) -> Float[Tensor, " T"]:
    """All tokens alike."""
    return _at(passage, passage.scored)


def oracle(passage: Passage, targets: Sequence[Span]) -> Float[Tensor, " T"]:
    """1 at the tokens that share a character with a target, such as the object of a fact, else 0 (TAALM's Oracle)."""
    hit = [t for t in passage.scored if any(_overlap(passage.spans[t], target) for target in targets)]
    return _at(passage, hit)


def capitalised(passage: Passage) -> Float[Tensor, " T"]:
    """1 at the tokens of words with a capital at their start, else 0."""
    return _at(passage, [t for t in passage.scored if _word_start(passage, t)[:1].isupper()])


def one_minus_p(nll: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """w_t = 1 − p(x_t): what is known already counts less."""
    return focal(nll, gamma=1.0)


def focal(nll: Float[Tensor, " T"], gamma: float = 2.0) -> Float[Tensor, " T"]:
    """w_t = (1 − p(x_t))^γ (Lin et al., 2017, https://arxiv.org/abs/1708.02002), without its gradient."""
    return (-torch.expm1(-nll.clamp_min(0))).pow(gamma)


def entropy(entropies: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """w_t = the entropy of the prediction, in nats: where the base hesitates."""
    return entropies.clamp_min(0)


def token_dropping(nll: Float[Tensor, " T"], scored: Bool[Tensor, " T"], keep: float = 0.5) -> Float[Tensor, " T"]:
    """1 at the hardest share of the scored tokens, else 0 (after Hou et al., 2022, https://arxiv.org/abs/2203.13240).

    The paper drops tokens in the middle layers, by a running mean of each token's loss in pre-training; here the loss
    falls on the kept tokens, by their loss under the base.
    """
    return top_share(nll, scored, keep)


def rho1(
    nll: Float[Tensor, " T"], reference_nll: Float[Tensor, " T"], scored: Bool[Tensor, " T"], keep: float = 0.6
) -> Float[Tensor, " T"]:
    """1 at the share of the scored tokens with the largest excess loss, else 0 (RHO-1, Lin et al., 2024,
    https://arxiv.org/abs/2404.07965): what the model finds harder than a reference model that knows good text."""
    return top_share(nll - reference_nll, scored, keep)


def top_share(values: Float[Tensor, " T"], scored: Bool[Tensor, " T"], keep: float) -> Float[Tensor, " T"]:
    """Return 1 at exactly ⌈keep · n⌉ of the n scored tokens, those with the largest values; of equals the first.

    Raises:
        ConfigError: `keep` is not above 0 and at most 1.
    """
    if not 0 < keep <= 1:
        raise ConfigError(f"a share of {keep} of the tokens is to be kept", wanted="a number above 0 and at most 1")
    places = scored.nonzero()[:, 0]
    order = values[places].argsort(descending=True, stable=True)
    weights = torch.zeros(len(values))
    weights[places[order[: math.ceil(keep * len(places) - 1e-9)]]] = 1.0  # .6 · 5 is a little more than 3
    return weights


def _at(passage: Passage, tokens: Sequence[int]) -> Float[Tensor, " T"]:
    weights = torch.zeros(len(passage.spans))
    weights[list(tokens)] = 1.0
    return weights


def _overlap(span: Span, other: Span) -> bool:
    return max(span[0], other[0]) < min(span[1], other[1])


def _word_start(passage: Passage, t: int) -> str:
    """Return the text from the start of the word that token t belongs to, up to the token's end."""
    start, stop = passage.spans[t]
    piece = passage.text[start:stop]
    start += len(piece) - len(piece.lstrip())
    while 0 < start < stop and passage.text[start - 1].isalnum() and passage.text[start].isalnum():
        start -= 1
    return passage.text[start:stop]
