"""The KL anchor: a term in the loss that holds a model's predictions on some text where they were before training.

    L + λ · mean over the tokens of some anchor rows of KL(p₀ ‖ p)

p₀ is what the model predicted before the first step. Of that, the hidden states that enter the output head are kept,
d numbers a token, computed once: a step then costs one pass over its anchor rows, and there is no second model. The
rows of a step depend on the seed and the step only, and the mean is over all of them, so neither accumulation nor the
number of processes changes the term.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from budwood.errors import NotSupportedError
from budwood.training.batches import evaluation_batches
from budwood.training.blocks import mode
from budwood.training.divergence import head_kl
from budwood.training.draws import drawn
from budwood.training.loss import Batch, language_model, target_states

if TYPE_CHECKING:
    from budwood.data.render import Encoded
    from budwood.training.feed import Collate


@dataclass(frozen=True)
class Anchor:
    """Text whose predictions should stay. Made by `of`.

    Attributes:
        rows: the text; each token with a weighted label counts, and counts alike.
        states: of each row the states that entered the head at those tokens, (tokens, d), on the CPU.
        weight: λ.
        rows_per_step: how many rows a step looks at.
    """

    rows: Sequence[Encoded]
    states: Sequence[Tensor]
    weight: float
    rows_per_step: int

    @classmethod
    def of(
        cls,
        model: nn.Module,
        rows: Sequence[Encoded],
        collate: Collate,
        *,
        weight: float,
        rows_per_step: int,
        batch_size: int,
        without: contextlib.AbstractContextManager[object] | None = None,
    ) -> Anchor:
        """Return the anchor at what `model` predicts now.

        Args:
            model: a causal language model on its device; its mode is restored.
            rows: encoded rows, each with a weighted label.
            collate: makes a padded batch of rows.
            weight, rows_per_step: as the attributes.
            batch_size: rows that are computed together.
            without: what to predict without, such as `model.disable_adapter()`.

        Raises:
            NotSupportedError: the logits of the model are not those of a frozen head.
        """
        longest_first = [row for batch in evaluation_batches(rows, batch_size, 0, 1) for row in batch]
        states: list[Tensor] = []
        with torch.no_grad(), mode(model, training=False), without or contextlib.nullcontext():
            for batch in evaluation_batches(longest_first, batch_size, 0, 1):
                hidden, counts, _ = _states(model, send_to_device(collate(batch), language_model(model).device))
                states += hidden.cpu().split(counts)
        return cls(longest_first, states, weight, rows_per_step)

    def chosen(self, step: int, seed: int) -> list[int]:
        """Return which rows the step after `step` steps looks at."""
        return drawn(len(self.rows), step * self.rows_per_step, (step + 1) * self.rows_per_step, f"anchor {seed}")

    def tokens(self, rows: Sequence[int]) -> int:
        """Return over how many tokens the term is a mean where these rows are looked at."""
        return sum(len(self.states[row]) for row in rows)

    def divergence(self, model: nn.Module, batch: Batch, rows: Sequence[int]) -> Tensor:
        """Return the sum of KL(p₀ ‖ p) over the tokens of a batch, a scalar in nats; `batch` holds these rows."""
        hidden, _, head = _states(model, batch)
        before = [self.states[row] for row in rows]
        reference = torch.cat(before).to(hidden.device) if before else hidden.detach()
        return head_kl(hidden, reference, head.weight, head.bias).sum()


def _states(model: nn.Module, batch: Batch) -> tuple[Tensor, list[int], nn.Linear]:
    """Return the states that enter the head at the targets, how many of them each row has, and the head."""
    found = target_states(model, batch)
    if found is None:
        raise NotSupportedError(
            "the KL anchor needs logits that are those of a frozen output head as they stand, which this model's are"
            " not",
            wanted="no adapter on the head, and no soft cap or scale behind it",
            action="leave out learner.anchor; --rehearse and learner.review keep what is known, too",
        )
    hidden, targets, head = found
    return hidden, torch.bincount(targets.rows, minlength=len(batch["labels"])).tolist(), head
