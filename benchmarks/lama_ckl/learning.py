"""One run: an adapter in the top layers learns windows of text with token weights, and is probed after every epoch.

The protocol is the one TAALM reports along its curves (arXiv 2407.16920), at the size of a CPU: LoRA r = 16, α = 32 on
all projections of the top six layers, AdamW, 8 windows a step, the loss normalised a sequence. What the frozen layers
below compute is kept, for texts and for probes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor

from budwood.data.collate import Collator
from budwood.data.render import Encoded
from budwood.evals.curves import CurvePoint
from budwood.evals.recall import Recall, score_probes
from budwood.models import Base, resolve_targets
from budwood.training.loss import language_model, weighted_nll
from budwood.training.prefix_cache import PrefixCache
from budwood.training.settings import Normalisation
from budwood.tuning.attach import quiet_peft

TOP = 6  # layers
PADS = Collator(pad_token_id=0)


@dataclass(frozen=True)
class Schedule:
    """How a run goes; the same for all arms."""

    epochs: int = 12
    batch_size: int = 8
    learning_rate: float = 3e-4
    rank: int = 16


@dataclass(frozen=True)
class Look:
    """What was known after an epoch.

    Attributes:
        epoch: 0 is before training.
        learn, nll: of each fact the accuracy, and nats a token of its object.
        keep: of each fact to keep its accuracy.
        margin: of each fact by how many nats a token its object is likelier for its subject than for another subject
            of the relation; None where there is no other.
    """

    epoch: int
    learn: tuple[float, ...]
    nll: tuple[float, ...]
    keep: tuple[float, ...]
    margin: tuple[float | None, ...] = ()

    @property
    def point(self) -> CurvePoint:
        return CurvePoint(self.epoch, *(sum(one) / len(one) for one in (self.learn, self.keep, self.nll)))


@contextlib.contextmanager
def adapted(base: Base, rows: Sequence[Encoded], folder: Path, *, rank: int, seed: int) -> Iterator[PeftModel]:
    """Yield the base with a fresh adapter and with the states of `rows` kept; the base is as before afterwards."""
    depth = int(base.model.config.get_text_config().num_hidden_layers)
    targets = resolve_targets(base.model, ("q", "k", "v", "o", "gate", "up", "down"))
    layers = list(range(depth - TOP, depth))
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, layers_to_transform=layers)
    torch.manual_seed(seed)
    with quiet_peft():
        model = get_peft_model(base.model, config)
    try:
        cache = PrefixCache.build(model, rows, PADS, folder, batch_size=16)
        with cache.attached(model):
            yield model
    finally:
        model.unload()


@dataclass(frozen=True)
class Probes:
    """What a run is asked after each epoch: the facts to learn, the same about other subjects, the facts to keep."""

    learn: Sequence[Encoded]
    foils: Sequence[Encoded | None]
    keep: Sequence[Encoded]

    @property
    def rows(self) -> list[Encoded]:
        return [*self.learn, *(foil for foil in self.foils if foil is not None), *self.keep]


def learn(
    model: PeftModel,
    rows: Sequence[Encoded],
    weights: Sequence[Tensor],
    probes: Probes,
    schedule: Schedule,
    *,
    seed: int,
    normalise: Normalisation = "sequence",
) -> Iterator[Look]:
    """Train, and yield a look before the first epoch and after each."""
    yield _look(0, model, probes)
    for epoch in epochs(model, rows, weights, schedule, seed=seed, normalise=normalise):
        yield _look(epoch, model, probes)


def epochs(
    model: PeftModel,
    rows: Sequence[Encoded],
    weights: Sequence[Tensor],
    schedule: Schedule,
    *,
    seed: int,
    normalise: Normalisation = "sequence",
) -> Iterator[int]:
    """Train in place, and yield the number of each epoch when it is done, with the model in evaluation mode."""
    weighted = [dataclasses.replace(row, loss_weights=one.tolist()) for row, one in zip(rows, weights, strict=True)]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=schedule.learning_rate, weight_decay=0.0)
    for epoch in range(schedule.epochs):
        generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
        order = torch.randperm(len(weighted), generator=generator).tolist()
        model.train()
        for start in range(0, len(order), schedule.batch_size):
            batch = PADS([weighted[i] for i in order[start : start + schedule.batch_size]])
            moved = {name: value.to(language_model(model).device) for name, value in batch.items()}
            total, count = weighted_nll(model, moved, normalise)
            (total / count).backward()
            optimiser.step()
            optimiser.zero_grad()
        model.eval()
        yield epoch + 1


def _look(epoch: int, model: PeftModel, probes: Probes) -> Look:
    learned, kept = (_scores(model, one).scores for one in (probes.learn, probes.keep))
    nll = tuple(score.nll for score in learned)
    return Look(
        epoch,
        tuple(score.accuracy for score in learned),
        nll,
        tuple(score.accuracy for score in kept),
        _margins(model, nll, probes.foils),
    )


def _margins(model: PeftModel, nll: Sequence[float], foils: Sequence[Encoded | None]) -> tuple[float | None, ...]:
    asked = [foil for foil in foils if foil is not None]
    found = iter(_scores(model, asked).scores if asked else ())
    return tuple(None if foil is None else next(found).nll - own for own, foil in zip(nll, foils, strict=True))


def _scores(model: PeftModel, probes: Sequence[Encoded]) -> Recall:
    return score_probes(model, probes, batch_size=16)
