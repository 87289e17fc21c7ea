"""The plan of a run: how many steps, when to evaluate and save, the learning rate at each step. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from budwood.errors import ConfigError
from budwood.training.settings import TrainingSettings

TIMES = 10  # evaluations and checkpoints of a run whose settings do not say how often

# Settings that change nothing in what is computed; a resumed run may have others.
_FREE = {"workers", "trackers", "device", "gradient_checkpointing", "cache_prefix", "save_every"}


@dataclass(frozen=True)
class Plan:
    """What follows from the settings and the number of rows, before anything is computed.

    Args:
        settings: how long, how fast, how often.
        rows: training rows.
        seed: decides the order of rows and the dropout.
        processes: how many processes train together, each with `settings.batch_size` rows at a time.
    """

    settings: TrainingSettings
    rows: int
    seed: int
    processes: int = 1

    @property
    def rows_per_step(self) -> int:
        return self.settings.batch_size * self.settings.accumulate * self.processes

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.rows / self.rows_per_step)

    @property
    def total_steps(self) -> int:
        return self.settings.max_steps or math.ceil(self.settings.epochs * self.steps_per_epoch)

    @property
    def warmup_steps(self) -> int:
        return min(self._warmup_wanted, self.total_steps // 2)

    @property
    def warmup_is_cut(self) -> bool:
        """Whether the settings ask for a longer warm-up than half of the run."""
        return self._warmup_wanted > self.warmup_steps

    @property
    def _warmup_wanted(self) -> int:
        wanted = self.settings.warmup_steps
        return math.ceil(wanted * self.total_steps) if wanted < 1 else math.ceil(wanted)

    def evaluates_at(self, step: int) -> bool:
        """Whether the adapter is evaluated after `step` steps; always after the last."""
        return self._falls_on(step, self.settings.evaluate_every)

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint is due after `step` steps; always after the last."""
        return self._falls_on(step, self.settings.save_every)

    def _falls_on(self, step: int, every: int | None) -> bool:
        return step % (every or math.ceil(self.total_steps / TIMES)) == 0 or step == self.total_steps

    def learning_rate_factor(self, step: int) -> float:
        """Return the factor on the highest learning rate after `step` steps: a linear rise, then the schedule.

        With w warm-up steps, T steps in all and the floor f: (t + 1) / w for t < w, then, with the part that is done
        p = (t - w) / (T - w), f + (1 - f) s(p) where s is 1 - p, (1 + cos πp) / 2, or 1 for a constant schedule.
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        floor = self.settings.final_fraction
        return floor + (1 - floor) * _SCHEDULES[self.settings.schedule](done)

    def identity(self) -> dict[str, object]:
        """Return all that decides what is computed; a run is only resumed with an equal one."""
        decides = self.settings.model_dump(mode="json", exclude=_FREE)
        return {"rows": self.rows, "seed": self.seed, "processes": self.processes, **decides}

    def require_same(self, before: dict[str, object]) -> None:
        """Refuse to go on with a run that began with another plan.

        Raises:
            ConfigError: names what differs.
        """
        now = self.identity()
        before = TrainingSettings().model_dump(mode="json") | before  # settings that came later had their default
        changed = [f"{key} was {before.get(key)}, is {now.get(key)}" for key in now if now[key] != before.get(key)]
        if changed:
            raise ConfigError(
                "the run to resume began with another plan: " + "; ".join(changed),
                wanted="the same rows, seed and settings",
                action="resume with the settings that it began with, or start a new run",
            )


_SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "constant": lambda done: 1.0,
}
