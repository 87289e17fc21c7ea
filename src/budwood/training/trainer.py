"""`WeightedTrainer`: transformers' Trainer with an exact loss, our checkpoints, and checks before each step.

The loss of an optimiser step is a quotient of two sums over the whole step (`loss`): over all batches that are
accumulated and all processes. So neither the batch size nor the number of processes changes the result (up to
rounding).

For who updates transformers: the private methods of the Trainer that are replaced here are `_get_grad_norm`,
`_save_checkpoint`, `_load_from_checkpoint`, `_load_optimizer_and_scheduler` and `_load_rng_state`. The tests of
non-finite losses and of resuming fail when one of them changes its name.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import DefaultFlowCallback, PrinterCallback

from budwood.training import randomness
from budwood.training.batches import StepLoader, train_loader
from budwood.training.checkpoints import Checkpoint, CheckpointStore, load_trainable, trainable_tensors
from budwood.training.feed import LOSS, Feed, evaluation_loss, probe
from budwood.training.flow import Flow, require_finite, require_gradients
from budwood.training.ledger import Ledger
from budwood.training.loss import Batch, denominator, find_targets, language_model, weighted_nll
from budwood.training.plan import Plan
from budwood.training.signals import Interruption

Report = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Counts:
    """What the batches of one optimiser step hold, over all processes.

    Attributes:
        denominator: what the loss of the step is divided by; Σ w where it is the mean over tokens.
        supervised: targets with a weight.
        tokens: tokens, padding not counted.
        stops: processes that were asked to stop.
    """

    denominator: float
    supervised: float
    tokens: float
    stops: float


class WeightedTrainer(Trainer):
    """Trains the parameters of a model that require gradients.

    Args:
        model: a causal or an encoder-decoder language model, usually a `PeftModel`.
        arguments: the Trainer's own.
        feed: the data.
        plan: how long, how fast, how often.
        store: where checkpoints go.
        interruption: asks to stop.
        report: called in the main process with the event of each step.

    Attributes:
        ledger: what has been done.
    """

    control: Any
    lr_scheduler: Any

    def __init__(
        self,
        model: nn.Module,
        arguments: TrainingArguments,
        feed: Feed,
        plan: Plan,
        store: CheckpointStore,
        interruption: Interruption,
        report: Report,
    ) -> None:
        self._feed, self._plan, self._store, self.ledger = feed, plan, store, Ledger()
        self._interruption, self._report = interruption, report
        self._shifted = not language_model(model).config.is_encoder_decoder
        self._counts = Counts(0, 0, 0, 0)
        self._step_loss = torch.zeros(())
        self._event: dict[str, Any] = {}
        self._gradients_checked = False
        self._clock = self._step_began = time.monotonic()
        super().__init__(
            model=model,
            args=arguments,
            data_collator=feed.collate,
            train_dataset=feed.train,
            callbacks=[Flow(plan, evaluates=feed.evaluates, stop_requested=self.stop_requested)],
        )
        self.remove_callback(DefaultFlowCallback)
        self.remove_callback(PrinterCallback)
        # Tells the Trainer that `compute_loss` divides by the sum over the step, so that it does not divide again.
        self.model_accepts_loss_kwargs = True

    def stop_requested(self) -> bool:
        """Whether to stop after this step. Several processes agree on it at the beginning of a step."""
        if self.accelerator.num_processes == 1:
            return self._interruption.requested
        return self._counts.stops > 0

    # --- data and loss

    def get_train_dataloader(self) -> StepLoader:
        """Return the batches of this process. The sampler knows of processes, so accelerate must not split again."""
        pin_memory = self.args.device.type == "cuda"
        return train_loader(self._feed.train, self._feed.collate, self._plan, self.args.process_index, pin_memory)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], Tensor]:
        """Return the batches of one optimiser step, and its loss's denominator over them and all processes."""
        self._step_began = time.monotonic()
        self._step_loss = torch.zeros((), device=device)
        batches = list(itertools.islice(epoch_iterator, num_batches))
        self._counts = self._count(batches, device)
        # The loss of a step whose weights are all 0 is 0 / 1.
        return batches, torch.tensor(self._counts.denominator or 1.0, device=device)

    def _count(self, batches: list[Batch], device: torch.device) -> Counts:
        targets = [find_targets(batch, shifted=self._shifted) for batch in batches]
        normalise = self._plan.settings.normalise
        local = [
            sum(denominator(one, normalise, dtype=torch.float64).item() for one in targets),
            sum(len(one.ids) for one in targets),
            sum(batch["attention_mask"].sum().item() for batch in batches),
            float(self._interruption.requested),
        ]
        if self.accelerator.num_processes == 1:
            return Counts(*local)
        return Counts(*self.accelerator.reduce(torch.tensor(local, device=device), "sum").tolist())

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """Return this batch's part of the step's loss: its numerator over the denominator of the step."""
        assert not return_outputs and num_items_in_batch is not None
        total, _ = weighted_nll(model, inputs, self._plan.settings.normalise)
        part = total / num_items_in_batch
        self._step_loss += part.detach()
        # DistributedDataParallel averages the gradients of the processes; their sum is wanted.
        return part * self.accelerator.num_processes

    def floating_point_ops(self, inputs: Batch) -> int:
        """Return 0: the Trainer's estimate walks over all parameters for each batch, and is not used."""
        return 0

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Return the plan's learning rates as a scheduler."""
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self._plan.learning_rate_factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # --- checks between the gradients and the optimiser's step

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | float | None = None) -> float:
        """Return the norm of the gradients before clipping, once loss and gradients are found in order."""
        norm = float(super()._get_grad_norm(model, grad_norm))
        loss = float(self.accelerator.reduce(self._step_loss, "sum"))
        if not self._gradients_checked:
            require_gradients(self.model)
            self._gradients_checked = True
        step = self.state.global_step + 1
        require_finite(loss, f"the loss of step {step}", self._plan, self._store)
        require_finite(norm, f"the gradient norm of step {step}", self._plan, self._store)
        self.ledger.last_loss = loss
        return norm

    # --- figures

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Make the event of the step that has just ended, and publish it unless an evaluation will add to it."""
        if "loss" not in logs:  # the Trainer's own summary at the end
            return
        ledger, counts, seconds = self.ledger, self._counts, time.monotonic() - self._step_began
        ledger.add_step(self.state.global_step, int(counts.tokens), int(counts.supervised), seconds)
        self._event = {
            "step": ledger.step,
            "epoch": round(ledger.step / self._plan.steps_per_epoch, 4),
            "loss": ledger.last_loss,
            "lr": logs["learning_rate"],
            "grad_norm": logs["grad_norm"],
            "tokens": int(counts.tokens),
            "supervised_tokens": int(counts.supervised),
            "tokens_per_s": round(counts.tokens / max(seconds, 1e-9), 1),
            **self.figures(),
        }
        if not self.control.should_evaluate:
            self._publish()

    def figures(self) -> dict[str, float]:
        """Return further figures of the step that has just ended, for its event."""
        return {}

    def _publish(self) -> None:
        event, self._event = self._event, {}
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, dict(event))
        if self.args.process_index == 0:
            self._report(event)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Return the exact evaluation loss as `eval_loss`, and the probes' figures as `probe/figure`.

        Neither the weights nor the random numbers of training depend on how often this runs.
        """
        metrics: dict[str, float] = {}
        with randomness.untouched(), torch.no_grad():
            self.model.eval()
            if self._feed.evaluation:
                loss = evaluation_loss(self.model, self._feed, self._plan.settings, self.accelerator)
                require_finite(loss, f"the evaluation loss after step {self.ledger.step}", self._plan, self._store)
                metrics[LOSS] = loss
            metrics |= probe(self.model, self._feed, self.accelerator)
        self._event = (self._event or {"step": self.ledger.step}) | metrics
        self._publish()
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        judged = self._feed.judged_by
        if judged in metrics and self.ledger.step > 0:
            require_finite(metrics[judged], f"{judged} after step {self.ledger.step}", self._plan, self._store)
            self._judge(metrics[judged])
        if self.stop_requested():  # while it was evaluated
            self.control.should_save = self.control.should_training_stop = True
        return metrics

    def _judge(self, loss: float) -> None:
        """Enter an evaluation: a new best is saved at once, and lost patience ends the run."""
        if self.ledger.judge(loss):
            self.control.should_save = True
        if self.ledger.out_of_patience(self._plan.settings.patience):
            self.control.should_save = self.control.should_training_stop = True

    # --- checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.count_time()
        generators = gather_object([randomness.capture()])
        if self.args.process_index == 0:
            self._store.save(
                Checkpoint(
                    tensors=trainable_tensors(self.model),
                    optimizer=self.optimizer.state_dict(),
                    schedule=self.lr_scheduler.state_dict(),
                    generators=generators,
                    trainer=json.dumps(asdict(self.state)),
                    ledger=self.ledger,
                    plan=self._plan.identity(),
                )
            )
        self.accelerator.wait_for_everyone()

    def count_time(self) -> None:
        """Add the time since the last call, or since the beginning, to the ledger."""
        before, self._clock = self._clock, time.monotonic()
        self.ledger.wall_s += self._clock - before

    def resume(self, checkpoint: Checkpoint) -> None:
        """Train on from a checkpoint of the store."""
        self._checkpoint, self.ledger = checkpoint, checkpoint.ledger
        self.args.eval_on_start = False  # done when the run began
        self.train(resume_from_checkpoint=str(self._store.path(checkpoint.ledger.step)))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_trainable(self.model, self._checkpoint.tensors)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.optimizer.load_state_dict(self._checkpoint.optimizer)
            self.lr_scheduler.load_state_dict(self._checkpoint.schedule)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        randomness.restore(self._checkpoint.generators[self.args.process_index])
