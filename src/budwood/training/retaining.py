"""`RetainingTrainer`: a `WeightedTrainer` whose steps also see what is reviewed and what is anchored.

Both belong to the step, not to one of its batches, and go through the model in batches of their own, none larger than
the step's: the gradients add up before the optimiser is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from transformers import TrainingArguments

from budwood.training.batches import BLANK, Rows, dealt_out
from budwood.training.checkpoints import CheckpointStore
from budwood.training.feed import Feed
from budwood.training.loss import Batch
from budwood.training.plan import Plan
from budwood.training.retention import Retention
from budwood.training.signals import Interruption
from budwood.training.trainer import Counts, Report, WeightedTrainer

if TYPE_CHECKING:
    from budwood.data.render import Encoded


class RetainingTrainer(WeightedTrainer):
    """The arguments are those of `WeightedTrainer`, and what is done for what the model knew before."""

    def __init__(
        self,
        model: nn.Module,
        arguments: TrainingArguments,
        feed: Feed,
        plan: Plan,
        store: CheckpointStore,
        interruption: Interruption,
        report: Report,
        retention: Retention,
    ) -> None:
        super().__init__(model, arguments, feed, plan, store, interruption, report)
        self._retention, self._pending = retention, False
        self._reviewed: list[Batch] = []
        self._drift = torch.zeros(())
        if retention.optimiser is not None:
            self.optimizer = retention.optimiser(model, plan)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], Tensor]:
        """Return the batches of one step, with a denominator that counts the reviewed rows."""
        review, self._pending = self._retention.review, True
        self._reviewed, self._drift = [], torch.zeros((), device=device)
        if review is not None:
            chosen = review.chosen(self.state.global_step, self._plan)
            self._reviewed = [batch for batch, _ in self._batches(review.rows, chosen)]
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _count(self, batches: list[Batch], device: torch.device) -> Counts:
        return super()._count([*batches, *self._reviewed], device)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Add a batch's gradients, and with the first of a step those of what the step retains."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._pending:
            self._pending = False
            for batch in self._reviewed:
                loss = loss + super().training_step(model, batch, num_items_in_batch)
            self._hold(model)
        return loss

    def _hold(self, model: nn.Module) -> None:
        """Add the gradients of the anchor's term."""
        anchor = self._retention.anchor
        if anchor is None:
            return
        chosen = anchor.chosen(self.state.global_step, self._plan.seed)
        for batch, rows in self._batches(anchor.rows, chosen):
            part = anchor.divergence(model, batch, rows) / anchor.tokens(chosen)
            self._drift += part.detach()
            # As in `compute_loss`: the processes' gradients are averaged, and their sum is wanted.
            self.accelerator.backward(anchor.weight * part * self.accelerator.num_processes)

    def figures(self) -> dict[str, float]:
        """Return the divergence from the anchor in nats a token, and how many rows were reviewed."""
        retention, step = self._retention, self.state.global_step - 1
        found: dict[str, float] = {}
        if retention.anchor is not None:
            found["anchor_kl"] = float(self.accelerator.reduce(self._drift, "sum"))
        if retention.review is not None:
            found["reviewed_rows"] = len(retention.review.chosen(step, self._plan))
        return found

    def _batches(self, rows: Sequence[Encoded], chosen: Sequence[int]) -> Iterator[tuple[Batch, list[int]]]:
        """Yield this process's batches of the chosen rows, each with the rows that it holds."""
        lengths, blank = [len(rows[row].input_ids) for row in chosen], Rows(rows)[BLANK]
        size, process, processes = self._plan.settings.batch_size, self.args.process_index, self.args.world_size
        for places in dealt_out(lengths, size, process, processes):
            held = [chosen[place] for place in places]
            batch = self._feed.collate([rows[row] for row in held] or [blank])
            yield send_to_device(batch, self.args.device), held
