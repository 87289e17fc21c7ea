"""`train`: rows in, a trained model and a `TrainingResult` out; all that happens on the way is in the run folder."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import TrainingArguments

from budwood.errors import InterruptedRunError
from budwood.training import randomness
from budwood.training.borders import translated
from budwood.training.checkpoints import Checkpoint, CheckpointStore, load_trainable
from budwood.training.feed import LOSS, Collate, Feed, Probe
from budwood.training.folder import RunFolder
from budwood.training.plan import Plan
from budwood.training.prefix_run import prefix_cached
from budwood.training.preparation import name_logs, ready, require_usable, training_arguments
from budwood.training.progress import Part, progress_display
from budwood.training.retaining import RetainingTrainer
from budwood.training.retention import Retention
from budwood.training.settings import TrainingSettings
from budwood.training.signals import Interruption, interruptible
from budwood.training.trainer import Report, WeightedTrainer

if TYPE_CHECKING:
    from budwood.data.render import Encoded

__all__ = ["TrainingResult", "train"]


@dataclass(frozen=True)
class TrainingResult:
    """What training did, over all sessions of the run.

    Attributes:
        steps: optimiser steps taken.
        epochs: passes over the rows.
        train_tokens, supervised_tokens: tokens that went through the model, and those with a weight in the loss.
        wall_s: seconds, evaluation and saving included.
        tokens_per_s: tokens a second of the optimiser steps alone.
        peak_memory_mib: of the device, or on a CPU of the whole process; None where the system does not tell.
        final_loss: loss of the last step in nats, normalised as the settings say.
        best_step: the step whose adapter the model holds now; None without evaluation, where it is the last one.
        best_evaluation_loss: its loss, or the figure that it was judged by.
        stopped_early: whether patience ended the run.
    """

    steps: int
    epochs: float
    train_tokens: int
    supervised_tokens: int
    wall_s: float
    tokens_per_s: float
    peak_memory_mib: float | None
    final_loss: float | None
    best_step: int | None
    best_evaluation_loss: float | None
    stopped_early: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as metrics.json keeps them."""
        return asdict(self)


def train(  # noqa: PLR0913
    model: nn.Module,
    train_rows: Sequence[Encoded],
    evaluation_rows: Sequence[Encoded],
    collator: Collate,
    settings: TrainingSettings,
    folder: RunFolder,
    *,
    seed: int,
    probes: Mapping[str, Probe] | None = None,
    judged_by: str = LOSS,
    probed: Sequence[Encoded] = (),
    retention: Retention | None = None,
    progress: bool = True,
    part: Part | None = None,
    resume: bool = False,
) -> TrainingResult:
    """Train the parameters of `model` that require gradients; leave the best evaluated ones in it, in evaluation mode.

    A run that was stopped at any moment and is resumed ends with the same bits on a CPU as one that was not.

    Args:
        model: a causal or an encoder-decoder language model on its device, usually a `PeftModel`.
        train_rows: encoded rows.
        evaluation_rows: encoded rows that are not trained on; may be empty.
        collator: makes a padded batch of encoded rows.
        settings: with a learning rate.
        folder: where the run goes; opened here unless it is open.
        seed: decides the order of rows and the dropout.
        probes: functions from the model to figures, called at each evaluation.
        judged_by: what the best adapter has the lowest of: the evaluation loss, or `name/figure` of a probe.
        probed: rows that the probes ask the model about; the prefix cache holds them, too.
        retention: what is done for what the model knew before.
        progress: whether to show progress on standard error.
        part: where this is one of several trainings of a run: which, for the progress.
        resume: go on from the latest checkpoint in `folder`.

    Raises:
        ConfigError, DataError, NotSupportedError, UsageError: before anything is computed.
        TrainingError: it went wrong; the last checkpoint is kept.
        StorageError: the disk failed.
        InterruptedRunError: SIGINT or SIGTERM came; the state is saved.
    """
    beside = [*probed, *_rows_of(retention)]
    feed = Feed(train_rows, evaluation_rows, collator, probes or {}, judged_by, beside)
    require_usable(model, feed, settings)
    arguments = training_arguments(model, settings, folder, seed, evaluates=feed.evaluates)
    plan = Plan(settings, len(train_rows), seed, arguments.world_size)
    arguments.max_steps = plan.total_steps
    store = CheckpointStore(folder.checkpoints)
    prepared = ready(model, settings, feed.longest)
    with _opened(folder, arguments, resume), translated(settings), prepared, _stoppable() as stop:
        checkpoint = _latest(store, plan) if resume else None
        with (
            prefix_cached(model, feed, plan, folder, arguments),
            _recording(folder, arguments, plan, checkpoint, progress, part) as report,
        ):
            given = (model, arguments, feed, plan, store, stop, report)
            trainer = RetainingTrainer(*given, retention) if retention else WeightedTrainer(*given)
            name_logs(trainer, folder)
            _run(trainer, checkpoint, plan)
            if trainer.stop_requested():
                raise _interrupted(f"by {stop.signal} after step {trainer.ledger.step} of {plan.total_steps}")
        return _finish(trainer, plan, store)


def _rows_of(retention: Retention | None) -> list[Encoded]:
    """Return the rows that a step sees besides those that are trained on."""
    parts = (retention.anchor, retention.review) if retention else ()
    return [row for part in parts if part is not None for row in part.rows]


def _run(trainer: WeightedTrainer, checkpoint: Checkpoint | None, plan: Plan) -> None:
    """Train from the beginning or from a checkpoint; a run that was through already is only loaded."""
    randomness.seed_all(plan.seed, trainer.args.process_index)
    if checkpoint is None:
        trainer.train()
    elif checkpoint.ledger.step < plan.total_steps and not checkpoint.ledger.out_of_patience(plan.settings.patience):
        trainer.resume(checkpoint)
    else:
        trainer.ledger = checkpoint.ledger
        load_trainable(trainer.model, checkpoint.tensors)


def _finish(trainer: WeightedTrainer, plan: Plan, store: CheckpointStore) -> TrainingResult:
    """Put the best evaluated adapter into the model, and sum up."""
    trainer.count_time()
    ledger = trainer.ledger
    if ledger.best_step not in (None, ledger.step):
        load_trainable(trainer.model, store.load_best(ledger.best_step))
    return TrainingResult(
        steps=ledger.step,
        epochs=round(ledger.step / plan.steps_per_epoch, 4),
        train_tokens=ledger.train_tokens,
        supervised_tokens=ledger.supervised_tokens,
        wall_s=round(ledger.wall_s, 3),
        tokens_per_s=round(ledger.train_tokens / max(ledger.step_s, 1e-9), 1),
        peak_memory_mib=_peak_memory_mib(trainer.args.device),
        final_loss=ledger.last_loss,
        best_step=ledger.best_step,
        best_evaluation_loss=ledger.best_loss,
        stopped_early=ledger.step < plan.total_steps,
    )


@contextlib.contextmanager
def _opened(folder: RunFolder, arguments: TrainingArguments, resume: bool) -> Iterator[None]:
    """Hold the run folder in the main process; the others write nothing."""
    with folder.session(resume=resume) if arguments.process_index == 0 else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _stoppable() -> Iterator[Interruption]:
    try:
        with interruptible() as interruption:
            yield interruption
    except KeyboardInterrupt:
        raise _interrupted("in the middle of a step") from None


def _interrupted(how: str) -> InterruptedRunError:
    return InterruptedRunError(f"training was stopped {how}", action="go on from the last checkpoint with --resume")


def _latest(store: CheckpointStore, plan: Plan) -> Checkpoint | None:
    step = store.latest()
    if step is None:
        return None
    checkpoint = store.load(step)
    plan.require_same(checkpoint.plan)
    return checkpoint


@contextlib.contextmanager
def _recording(
    folder: RunFolder,
    arguments: TrainingArguments,
    plan: Plan,
    checkpoint: Checkpoint | None,
    progress: bool,
    part: Part | None,
) -> Iterator[Report]:
    """Bring the folder to the state of the checkpoint, and yield the function that takes the event of each step."""
    if arguments.process_index != 0:
        yield lambda event: None
        return
    store, step = CheckpointStore(folder.checkpoints), checkpoint.ledger.step if checkpoint else None
    if checkpoint:
        store.settle(checkpoint.ledger)
    else:
        store.clear()
    folder.truncate_events(step)
    with progress_display(progress, plan.total_steps, step or 0, part) as show:

        def report(event: Mapping[str, Any]) -> None:
            folder.append_event(event)
            folder.progress(event["step"], plan.total_steps)
            show(event)

        yield report


def _peak_memory_mib(device: torch.device) -> float | None:
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # bytes, or KiB
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20, 1)
