"""The ledger of a run: what has been done so far. Each checkpoint has it, so that a resumed run counts on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Ledger:
    """Counts of a run, and its best evaluation.

    Attributes:
        step: optimiser steps taken.
        train_tokens: tokens that went through the model in them, padding not counted.
        supervised_tokens: tokens among them that had a weight in the loss.
        step_s: seconds spent in optimiser steps.
        wall_s: seconds spent in all, evaluation and saving included.
        last_loss: loss of the last step, in nats, normalised as the settings say.
        best_step: the step whose adapter had the lowest evaluation loss; None before the first evaluation.
        best_loss: that loss, in the same unit.
        stale_evaluations: evaluations since then.
    """

    step: int = 0
    train_tokens: int = 0
    supervised_tokens: int = 0
    step_s: float = 0.0
    wall_s: float = 0.0
    last_loss: float | None = None
    best_step: int | None = None
    best_loss: float | None = None
    stale_evaluations: int = 0

    def add_step(self, step: int, tokens: int, supervised_tokens: int, seconds: float) -> None:
        """Enter an optimiser step: its number, what went through the model, and how long it took."""
        self.step = step
        self.train_tokens += tokens
        self.supervised_tokens += supervised_tokens
        self.step_s += seconds

    def judge(self, loss: float) -> bool:
        """Enter the evaluation loss of the current step; return whether it is the lowest so far."""
        better = self.best_loss is None or loss < self.best_loss
        if better:
            self.best_step, self.best_loss, self.stale_evaluations = self.step, loss, 0
        else:
            self.stale_evaluations += 1
        return better

    def out_of_patience(self, patience: int | None) -> bool:
        """Whether `patience` evaluations in a row brought no lower loss."""
        return patience is not None and self.stale_evaluations >= patience
