"""The optimiser loop of both stages: seeded batches, early stopping on a validation figure, a state to go on from.

A batch and its dropout depend on the seed and the step only, so an interrupted run that goes on ends with the same
parameters on a CPU as one that was left alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from budwood import storage
from budwood.errors import NonFiniteError
from budwood.methods.taalm.scorer import TrainableScorer
from budwood.training import randomness
from budwood.training.blocks import mode

Progress: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Course:
    """Where and how a stage runs.

    Attributes:
        folder: where its state is kept.
        seed: of batches and dropout.
        progress: called with (name of the stage, steps done, steps).
    """

    folder: Path
    seed: int = 0
    progress: Progress | None = None


class LoopSettings(Protocol):
    """What the settings of both stages have in common; see `settings.py`."""

    @property
    def steps(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def validate_every(self) -> int: ...
    @property
    def patience(self) -> int: ...


class Loop:
    """AdamW on the trained parameters of a scorer.

    Args:
        scorer: trained in place.
        settings: of a stage.
        course: where and how.
        name: of the stage, and of its state; a file from a run with other settings or other texts is ignored.
        rows: how many texts there are.
        data: a digest of them.
    """

    def __init__(
        self,
        scorer: TrainableScorer,
        settings: LoopSettings,
        course: Course,
        name: str,
        *,
        rows: int,
        data: str,
    ) -> None:
        self._scorer, self._settings, self._course, self._name, self._rows = scorer, settings, course, name, rows
        self._said = f"{settings!r} seed {course.seed} texts {data}"
        trained = [parameter for parameter in scorer.parameters() if parameter.requires_grad]
        self._optimiser = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        self._step, self._looks = 0, 0  # steps done; looks since the best one
        self._best: tuple[int, float, dict[str, Tensor]] | None = None

    def run(self, loss: Callable[[list[int]], Tensor], judge: Callable[[], float]) -> tuple[int, float]:
        """Train until the steps are done or patience is at its end; return the best step and its figure.

        Args:
            loss: of the texts with these indices.
            judge: the validation figure, larger is better, with the scorer in evaluation mode. It is asked before the
                first step too: where training makes nothing better, the scorer stays as it was.

        Raises:
            NonFiniteError: the loss is NaN or infinite.
        """
        self._resume()
        if self._best is None:
            self._look(judge)
        while self._step < self._settings.steps and self._looks < self._settings.patience:
            self._train(loss)
            if self._step % self._settings.validate_every == 0 or self._step == self._settings.steps:
                self._look(judge)
            if self._course.progress is not None:
                self._course.progress(self._name, self._step, self._settings.steps)
        assert self._best is not None
        step, value, state = self._best
        self._scorer.load_trained_state(state)
        return step, value

    def _train(self, loss: Callable[[list[int]], Tensor]) -> None:
        chosen = self._batch(self._step)
        with randomness.untouched(), mode(self._scorer, training=True):
            torch.manual_seed(self._course.seed * 1_000_003 + self._step)
            value = loss(chosen)
            if not bool(torch.isfinite(value)):
                raise NonFiniteError(
                    f"the loss of step {self._step + 1} is {value.item()}", action="lower the learning rate"
                )
            self._optimiser.zero_grad()
            value.backward()
        self._optimiser.step()
        self._step += 1

    def _batch(self, step: int) -> list[int]:
        """Return the texts of a step: each is seen once before one is seen again, as far as batches allow."""
        size = min(self._settings.batch_size, self._rows)
        epoch, place = divmod(step, self._rows // size)
        order = torch.randperm(
            self._rows, generator=torch.Generator().manual_seed(self._course.seed * 1_000_003 + epoch)
        )
        return order[place * size : (place + 1) * size].tolist()

    def _look(self, judge: Callable[[], float]) -> None:
        with mode(self._scorer, training=False):
            value = judge()
        if self._best is None or value > self._best[1]:
            self._best, self._looks = (self._step, value, self._scorer.trained_state()), 0
        else:
            self._looks += 1
        self._save()

    # --- the state

    def _path(self) -> Path:
        return self._course.folder / f"{self._name}.pt"

    def _save(self) -> None:
        state = {
            "said": self._said,
            "step": self._step,
            "looks": self._looks,
            "best": self._best,
            "scorer": self._scorer.trained_state(),
            "optimiser": self._optimiser.state_dict(),
        }
        with storage.new_file(self._path(), replace=True) as staged:
            torch.save(state, staged)

    def _resume(self) -> None:
        for state in self._kept():
            self._scorer.load_trained_state(state["scorer"])
            self._optimiser.load_state_dict(state["optimiser"])
            self._step, self._looks, self._best = state["step"], state["looks"], state["best"]

    def _kept(self) -> Iterator[dict[str, Any]]:
        """Yield the state of an interrupted run with these settings, if there is one that can be read."""
        try:
            state = torch.load(self._path(), weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
            return
        if isinstance(state, dict) and state.get("said") == self._said:
            yield state
