"""What is due after each step, and what must hold before it: the decisions and checks of `WeightedTrainer`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from budwood.errors import NonFiniteError, TrainingError
from budwood.training.checkpoints import CheckpointStore
from budwood.training.plan import Plan


class Flow(TrainerCallback):
    """Decides after each step what is due, in place of the Trainer's own intervals.

    Args:
        plan: says when to evaluate, to save and to end.
        evaluates: whether there is anything to evaluate.
        stop_requested: whether to save and to end early.
    """

    def __init__(self, plan: Plan, *, evaluates: bool, stop_requested: Callable[[], bool]) -> None:
        self._plan, self._evaluates, self._stop_requested = plan, evaluates, stop_requested

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Set what the Trainer does next."""
        step, stop = state.global_step, self._stop_requested()
        control.should_log = True
        control.should_evaluate = self._evaluates and self._plan.evaluates_at(step)
        control.should_save = stop or self._plan.saves_at(step)
        control.should_training_stop = stop or step >= self._plan.total_steps
        return control


def require_gradients(model: nn.Module) -> None:
    """Refuse a model with a trainable tensor that the loss does not reach.

    Raises:
        TrainingError: names such tensors.
    """
    without = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if without:
        shown = ", ".join(without[:3]) + (f" and {len(without) - 3} more" if len(without) > 3 else "")
        raise TrainingError(
            f"{len(without)} trainable tensors got no gradient in the first step: {shown}",
            wanted="a gradient for each trainable tensor",
            action="freeze the tensors that the loss does not depend on",
        )


def require_finite(value: float, name: str, plan: Plan, store: CheckpointStore) -> None:
    """Refuse to go on with a figure that is NaN or infinite.

    Raises:
        NonFiniteError: names the figure, and the last state that was saved.
    """
    if math.isfinite(value):
        return
    step = store.latest()
    saved = "no state was saved before" if step is None else f"the last good state is {store.path(step)}"
    raise NonFiniteError(
        f"{name} is {value}; {saved}",
        wanted="a finite number",
        action=f"lower training.learning_rate (it is {plan.settings.learning_rate:g}),"
        " or set training.dtype to float32",
    )
