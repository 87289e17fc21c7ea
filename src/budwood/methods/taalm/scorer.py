"""What a scorer is: something that gives each token of a text a number, the larger the more it is worth learning.

The whole text may be read, also what follows a token: scores are made once, before training. Three bodies are trained
alike (`meta_training`): `head.HeadScorer`, `encoder.EncoderScorer`, `base.BaseScorer`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from budwood.errors import AdapterError
from budwood.methods.taalm.passages import Passage
from budwood.training.blocks import mode

SCORED_TOGETHER = 16  # texts a forward pass


class Scorer(Protocol):
    """Anything that scores tokens, trained or not."""

    def scores(self, passages: Sequence[Passage]) -> list[Float[Tensor, " T"]]:
        """Return the scores of each passage's T tokens on the CPU, in the order given."""
        ...


class TrainableScorer(nn.Module, abc.ABC):
    """A scorer with parameters. A body says what it reads of a passage and how it scores a batch of that."""

    @abc.abstractmethod
    def prepare(self, passages: Sequence[Passage]) -> list[Any]:
        """Return what `forward` needs of each passage; it stays the same while the body is trained."""

    @abc.abstractmethod
    def forward(self, prepared: Sequence[Any]) -> Float[Tensor, "members rows T"]:
        """Return the scores of a batch by each member of the body, filled up with 0 to the longest row."""

    @torch.no_grad()
    def scores(self, passages: Sequence[Passage]) -> list[Float[Tensor, " T"]]:
        """Return the mean over the members of each token's score, in evaluation mode."""
        prepared, found = self.prepare(passages), []
        with mode(self, training=False):
            for start in range(0, len(prepared), SCORED_TOGETHER):
                found += list(self(prepared[start : start + SCORED_TOGETHER]).mean(dim=0).float().cpu())
        return [row[: len(passage.spans)].clone() for row, passage in zip(found, passages, strict=True)]

    def trained_state(self) -> dict[str, Tensor]:
        """Return the trained parameters by name, on the CPU, copied: what a prior keeps."""
        named = self.named_parameters()
        return {name: value.detach().cpu().clone() for name, value in named if value.requires_grad}

    @torch.no_grad()
    def load_trained_state(self, state: dict[str, Tensor]) -> None:
        """Take over what `trained_state` returned.

        Raises:
            AdapterError: names or shapes are others.
        """
        own = {name: value for name, value in self.named_parameters() if value.requires_grad}
        wrong = own.keys() ^ state.keys() or {name for name in own if own[name].shape != state[name].shape}
        if wrong:
            raise AdapterError(
                f"the scorer's weights do not fit: {len(wrong)} differ, first {min(wrong)}",
                wanted="weights of a scorer with these settings on this base",
            )
        for name, value in own.items():
            value.copy_(state[name])


def scored_mask(passages: Sequence[Passage]) -> Bool[Tensor, "rows T"]:
    """Return which tokens of a batch a loss may fall on."""
    mask = torch.zeros(len(passages), max(len(passage.spans) for passage in passages), dtype=torch.bool)
    for row, passage in enumerate(passages):
        mask[row, list(passage.scored)] = True
    return mask
