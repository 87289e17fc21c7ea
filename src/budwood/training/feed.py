"""What a model is trained and evaluated on, and the evaluation itself: an exact loss over all rows, and probes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, send_to_device
from torch import Tensor, nn

from budwood.training.batches import evaluation_batches
from budwood.training.loss import weighted_nll
from budwood.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from budwood.data.render import Encoded

Collate = Callable[[list["Encoded"]], dict[str, Tensor]]
Probe = Callable[[nn.Module], Mapping[str, float]]
LOSS = "eval_loss"  # the figure of an evaluation that is the loss over the evaluation rows


@dataclass(frozen=True)
class Feed:
    """The data of a run.

    Attributes:
        train, evaluation: encoded rows.
        collate: makes a padded batch of rows.
        probes: further figures to take of the model at each evaluation, by name; called in evaluation mode, without
            gradients.
        judged_by: the figure of an evaluation that the best adapter has the lowest of: `LOSS`, or `name/figure` of a
            probe.
        probed: rows that the probes ask the model about, so that the frozen layers are computed once for them, too.
    """

    train: Sequence[Encoded]
    evaluation: Sequence[Encoded]
    collate: Collate
    probes: Mapping[str, Probe]
    judged_by: str = LOSS
    probed: Sequence[Encoded] = ()

    @property
    def longest(self) -> int:
        """The tokens of the longest row, whatever it is for."""
        return max(len(row.input_ids) for row in (*self.train, *self.evaluation, *self.probed))

    @property
    def evaluates(self) -> bool:
        """Whether there is anything to evaluate."""
        return bool(self.evaluation or self.probes)

    @property
    def judges(self) -> bool:
        """Whether an evaluation tells which adapter is the best."""
        return bool(self.evaluation) or self.judged_by != LOSS


def evaluation_loss(model: nn.Module, feed: Feed, settings: TrainingSettings, accelerator: Accelerator) -> float:
    """Return the loss over all evaluation rows in nats, normalised as in training; each process computes its share.

    All processes get the result. The batch size changes nothing but the rounding. Where no target has a weight the
    loss is 0.
    """
    process, processes = accelerator.process_index, accelerator.num_processes
    batches = evaluation_batches(feed.evaluation, settings.batch_size, process, processes)
    total = _sums(model, batches, feed.collate, settings, accelerator.device)
    if accelerator.num_processes > 1:
        total = accelerator.reduce(total.to(accelerator.device), "sum")
    return _quotient(total)


@torch.no_grad()
def loss_of(model: PreTrainedModel, rows: Sequence[Encoded], collate: Collate, settings: TrainingSettings) -> float:
    """Return the same loss of a model that is not being trained, computed by this process alone."""
    batches = evaluation_batches(rows, settings.batch_size, 0, 1)
    return _quotient(_sums(model.eval(), batches, collate, settings, model.device))


def _sums(
    model: nn.Module,
    batches: Iterable[list[Encoded]],
    collate: Collate,
    settings: TrainingSettings,
    device: torch.device,
) -> Tensor:
    """Return numerator and denominator of the loss over batches, (2,)."""
    total = torch.zeros(2, dtype=torch.float64)
    for rows in batches:
        batch = send_to_device(collate(rows), device)
        total += torch.stack(weighted_nll(model, batch, settings.normalise)).cpu().double()
    return total


def _quotient(total: Tensor) -> float:
    numerator, denominator = total.tolist()
    return float(numerator / (denominator or 1.0))


def probe(model: nn.Module, feed: Feed, accelerator: Accelerator) -> dict[str, float]:
    """Return the figures of all probes as `name/figure`. They run in the main process; the others wait for it."""
    figures: list[dict[str, float]] = [{}]
    if accelerator.is_main_process:
        taken = {name: take(model) for name, take in feed.probes.items()}
        figures = [{f"{name}/{key}": float(value) for name, found in taken.items() for key, value in found.items()}]
    if accelerator.num_processes > 1:
        broadcast_object_list(figures)
    return figures[0]
