"""m soft prompts, trained one after the other on the frozen base, each as a run of its own inside the run.

    RUN/checkpoints/search/RATE/       a short trial of a learning rate on all text mixed
    RUN/checkpoints/common/all/        one prompt on all text mixed, from which each prompt goes on
    RUN/checkpoints/prompts/NAME/      the training of one prompt: events.jsonl, checkpoints/

What compression took is much the same for all text, so it is learned once; what sets the kinds of text apart comes
after that. All trainings together take the steps that the prompts would take each from the vocabulary.

What is finished is only loaded when the run is resumed, so a run that was stopped goes on in the prompt it was at.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from jaxtyping import Float
from torch import Tensor

from budwood.data.collate import Collator
from budwood.data.render import Encoded
from budwood.errors import NonFiniteError
from budwood.methods.idp.domains import Division, Domain
from budwood.methods.idp.plans import (
    COMMON,
    PROMPTS,
    SEARCH,
    longest_settings,
    prompt_settings,
    rates_of,
    stages,
    trial_steps,
)
from budwood.methods.idp.runtime import Prompt
from budwood.methods.idp.settings import BankSettings
from budwood.models import Base
from budwood.training.folder import RunFolder, read_events, read_status
from budwood.training.progress import Part
from budwood.training.settings import TrainingSettings
from budwood.training.train import TrainingResult, train
from budwood.tuning.attach import attach
from budwood.tuning.lesson import Order
from budwood.tuning.protocol import TunerSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Trained:
    """One trained prompt, its domain, and how training went."""

    prompt: Prompt
    domain: Domain
    result: TrainingResult


@dataclass(frozen=True)
class PromptTraining:
    """Trains the prompts of a run.

    Args:
        order: the base's tuner, its settings, training and seed.
        settings: of the bank.
        base: frozen.
        folder: of the run.
        pad_token_id: any id of the vocabulary.
        progress, resume: as in `train`.
        parts: of the run's progress, by the folder and the name of each training; see `parts_of`.
    """

    order: Order
    settings: BankSettings
    base: Base
    folder: RunFolder
    pad_token_id: int
    progress: bool
    resume: bool
    parts: Mapping[tuple[str, str], Part] = field(default_factory=dict)

    def find_rate(self, division: Division) -> tuple[float, dict[str, float | None]]:
        """Try each learning rate for some steps on the mixture; return the best, and the loss of each by its name.

        All trials see the same batches, so their training losses compare; the loss is the mean of the last quarter.
        """
        rates, steps = rates_of(self.order, self.settings), trial_steps(self.order, self.settings, division)
        if len(rates) == 1:
            return rates[0], {}
        if not steps:
            rate = self.order.training.learning_rate or self.order.tuner.learning_rate
            log.info("learning rate %g: the training is too short for a search", rate)
            return rate, {}
        rows, _ = division.mixture()
        losses = {rate: self._trial(rate, rows, steps) for rate in rates}
        best = min(losses, key=lambda rate: losses[rate])
        if not math.isfinite(losses[best]):
            raise NonFiniteError(
                f"the loss became NaN or infinite at each of the learning rates {rates}",
                action="set a lower training.learning_rate",
            )
        log.info("learning rate %g, of %s", best, ", ".join(f"{rate:g}: {loss:.3f}" for rate, loss in losses.items()))
        return best, {f"{rate:g}": loss if math.isfinite(loss) else None for rate, loss in losses.items()}

    def train_all(self, division: Division, rate: float) -> tuple[Trained | None, list[Trained]]:
        """Train the common prompt, where there is one, and from it the prompt of each domain."""
        steps = stages(self.order, self.settings, division)
        training = self.order.training.model_copy(update={"learning_rate": rate})
        common = self._train_common(division, training, steps[0]) if steps[0] else None
        start = None if common is None else common.prompt.vectors
        prompts = []
        for number, domain in enumerate(division.domains):
            place = RunFolder(self.folder.checkpoints / PROMPTS / domain.name)
            tuner = prompt_settings(self.order, self.settings, number)
            own = training if common is None else training.model_copy(update={"max_steps": steps[1 + number]})
            prompts.append(self._train(domain, tuner, own, place, self.order.seed + number, start))
        return common, prompts

    def _train_common(self, division: Division, training: TrainingSettings, steps: int) -> Trained:
        train_rows, held_out = division.mixture()
        return self._train(
            Domain(COMMON, train_rows, held_out),
            longest_settings(self.order, self.settings),
            training.model_copy(update={"max_steps": steps}),
            RunFolder(self.folder.checkpoints / COMMON / "all"),
            self.order.seed,
        )

    def _trial(self, rate: float, rows: Sequence[Encoded], steps: int) -> float:
        short = {"learning_rate": rate, "max_steps": steps, "patience": None, "save_every": steps, "trackers": ()}
        place = RunFolder(self.folder.checkpoints / SEARCH / f"{rate:g}")
        try:
            self._train(
                Domain("mixture", list(rows), []),
                self.order.tuner_settings,
                self.order.training.model_copy(update=short),
                place,
                self.order.seed,
            )
        except NonFiniteError:
            return math.inf
        losses = [event["loss"] for event in read_events(place.path) if event.get("loss") is not None]
        return fmean(losses[-math.ceil(steps / 4) :])

    def _train(
        self,
        domain: Domain,
        tuner: TunerSettings,
        training: TrainingSettings,
        place: RunFolder,
        seed: int,
        start: Float[Tensor, "n d"] | None = None,
    ) -> Trained:
        model = attach(self.base.model, self.order.tuner, tuner, seed=seed)
        if start is not None:
            weight = model.prompt_encoder["default"].embedding.weight
            weight.data.copy_(start[: len(weight)])  # a shorter prompt begins as the beginning of the common one
        began = self.resume and bool(read_status(place.path))
        result = train(
            model,
            domain.train,
            domain.held_out,
            Collator(self.pad_token_id),
            training,
            place,
            seed=seed,
            progress=self.progress,
            part=self.parts.get((place.path.parent.name, place.path.name)),
            resume=began,
        )
        vectors = model.prompt_encoder["default"].embedding.weight.detach().float().cpu().clone()
        config = model.peft_config["default"]
        config.base_model_name_or_path, config.revision = self.base.source.loadable, self.base.source.revision
        config.inference_mode = True
        return Trained(Prompt(domain.name, vectors, config), domain, result)

    def gather_events(self, common: Trained | None, trained: Sequence[Trained]) -> None:
        """Write the events of all trainings into the run's own file, with steps that count on, for its report."""
        self.folder.truncate_events(None)
        places = [(f"{PROMPTS}/{one.prompt.name}", one) for one in trained]
        before = 0
        for place, one in places if common is None else [(f"{COMMON}/all", common), *places]:
            for event in read_events(self.folder.checkpoints / place):
                if event["step"] > 0:  # the loss before training is that of one prompt, not of the run
                    self.folder.append_event({**event, "step": before + event["step"], "prompt": one.prompt.name})
            before += one.result.steps


def summed(common: Trained | None, trained: Sequence[Trained]) -> dict[str, object]:
    """Return the figures of all trainings as those of one: sums, means over held-out tokens, and a record a prompt."""
    own = [one.result for one in trained]
    results = own if common is None else [common.result, *own]
    held_out = [sum(row.supervised for row in one.domain.held_out) for one in trained]
    losses = [one.best_evaluation_loss for one in own]
    known = all(loss is not None for loss in losses) and sum(held_out) > 0
    peaks = [one.peak_memory_mib for one in results if one.peak_memory_mib is not None]
    seconds = sum(one.wall_s for one in results)
    return {
        "steps": sum(one.steps for one in results),
        "epochs": fmean(one.epochs for one in results),
        "train_tokens": sum(one.train_tokens for one in results),
        "supervised_tokens": sum(one.supervised_tokens for one in results),
        "wall_s": round(seconds, 3),
        "tokens_per_s": round(sum(one.train_tokens for one in results) / max(seconds, 1e-9), 1),
        "peak_memory_mib": max(peaks, default=None),
        "final_loss": fmean(one.final_loss for one in own if one.final_loss is not None),
        "best_step": None,
        "best_evaluation_loss": sum(map(_product, losses, held_out)) / sum(held_out) if known else None,
        "stopped_early": any(one.stopped_early for one in results),
        "prompts": [_record(one) for one in trained],
    }


def _product(loss: float | None, tokens: int) -> float:
    return (loss or 0.0) * tokens


def _record(one: Trained) -> dict[str, object]:
    return {
        "prompt": one.prompt.name,
        "vectors": len(one.prompt.vectors),
        "windows": len(one.domain.train),
        "held_out": len(one.domain.held_out),
        "steps": one.result.steps,
        "best_step": one.result.best_step,
        "held_out_loss": one.result.best_evaluation_loss,
        "words": " ".join(one.domain.words),
    }
