"""What a method that is not plain says of itself: how evidence becomes rows, what is trained, and what is published.

    learner.read(order)  ->  Lesson          evidence as tokens; no weights are read
    lesson.learn(base)   ->  Learned         what is published, and what was measured on the way
    format.save, .load, .answers             how a result that is no PEFT adapter lies in a folder

Most methods are plain: labelled rows, one adapter, one training. `tuning.plain` is their lesson.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from jaxtyping import Int
from torch import Tensor, nn

from budwood.data.render import Encoded, Renderer
from budwood.data.report import Progress
from budwood.data.settings import DataSettings
from budwood.models import Base, Source
from budwood.training.folder import RunFolder
from budwood.training.settings import TrainingSettings
from budwood.tuning.protocol import LearnerSettings, Tuner, TunerSettings


@dataclass(frozen=True)
class AdapterStart:
    """A run whose adapter training starts from; it belongs to the base of the order.

    Attributes:
        run: its folder.
        adapter: the folder of the adapter in it.
    """

    run: Path
    adapter: Path


@dataclass(frozen=True)
class Order:
    """What is to be learned from what, and how: the parts of a recipe that a learner reads.

    Attributes:
        source: the base; its weights are not read yet.
        files: the evidence.
        tuner, tuner_settings: where new parameters live.
        learner: the settings of the method's own learner; None where it has none.
        data, training, seed: as in the recipe.
        show: called with the progress of what takes long while the evidence is read.
        start: the run to go on from; None for a fresh adapter.
    """

    source: Source
    files: tuple[Path, ...]
    tuner: Tuner
    tuner_settings: TunerSettings
    learner: LearnerSettings | None
    data: DataSettings
    training: TrainingSettings
    seed: int
    show: Progress | None = None
    start: AdapterStart | None = None


@dataclass(frozen=True)
class Outline:
    """What a lesson would do, told without weights.

    Attributes:
        parameters: numbers that are trained.
        steps: optimiser steps in all.
        warmup_steps: those in which the learning rate rises; where there are several trainings, of each one.
        rows: `DataReport.to_dict()`.
        adapted_layers: as `attach.adapted_layers` tells them.
    """

    parameters: int
    steps: int
    warmup_steps: int
    rows: dict[str, Any]
    adapted_layers: frozenset[str] | None = None


@dataclass(frozen=True)
class Learned:
    """What a lesson leaves in memory.

    Attributes:
        model: what is published, in evaluation mode.
        parameters: how many numbers were trained.
        metrics: what metrics.json keeps.
        held_out: rows that were not trained on.
        parts: where the model chooses among several for each input: each of them alone, by name. They are held
            against the choice on `held_out`.
    """

    model: nn.Module
    parameters: int
    metrics: dict[str, Any]
    held_out: Sequence[Encoded] = ()
    parts: Mapping[str, nn.Module] = field(default_factory=dict)


class Lesson(Protocol):
    """Evidence made ready: rows as tokens, and what is to be trained on them."""

    @property
    def renderer(self) -> Renderer:
        """How text becomes ids, in training and later."""

    def outline(self) -> Outline:
        """Say what `learn` would do, without weights."""

    def learn(self, base: Base, folder: RunFolder, *, progress: bool, resume: bool) -> Learned:
        """Train on `base`, and keep all that is needed to go on in `folder`."""


class Learner(Protocol):
    """How a method learns."""

    def read(self, order: Order) -> Lesson:
        """Read the evidence. What cannot be used is refused here, before a folder is made."""


class Format(Protocol):
    """How a result that is no PEFT adapter lies in a folder."""

    def save(self, model: nn.Module, folder: Path, base: Base) -> None:
        """Write `model` into `folder`, which is empty."""

    def load(self, base: Base, folder: Path, *, force: bool) -> nn.Module:
        """Return what `save` wrote, on its base and in evaluation mode.

        Args:
            force: accept a base with other weights.
        """

    def weights(self, folder: Path) -> list[Path]:
        """Return the files that hold the learned numbers, in order; one that is missing is an `AdapterError`."""

    def base_id(self, folder: Path) -> str:
        """Return the base that the folder names, or nothing."""

    def answers(self, model: nn.Module, ids: Int[Tensor, "b t"], folder: Path | None = None) -> dict[str, Tensor]:
        """Return what two loads must agree on bit by bit: "base", the base's logits, and others by name.

        Args:
            folder: what can be read from it by other software is read by that; None takes all from memory.
        """
