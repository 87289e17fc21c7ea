"""The plain lesson: labelled rows, one adapter of one tuner, one training."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from budwood.data.collate import Collator
from budwood.data.examples import ExampleSet, load_examples
from budwood.data.render import Renderer
from budwood.models import Base, empty_model, load_tokenizer
from budwood.training.feed import LOSS, loss_of
from budwood.training.folder import RunFolder, read_events
from budwood.training.plan import Plan
from budwood.training.train import train
from budwood.tuning.attach import adapted_layers, attach, count_parameters
from budwood.tuning.lesson import Learned, Order, Outline
from budwood.tuning.protocol import Promise

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlainLesson:
    """Rows as tokens, for one adapter."""

    order: Order
    renderer: Renderer
    rows: ExampleSet

    def outline(self) -> Outline:
        """Say what `learn` would do, without weights."""
        order, plan = self.order, self._plan()
        adapted = attach(empty_model(order.source), order.tuner, order.tuner_settings, seed=order.seed)
        rows, layers = self.rows.report.to_dict(), adapted_layers(adapted)
        return Outline(count_parameters(adapted), plan.total_steps, plan.warmup_steps, rows, layers)

    def learn(self, base: Base, folder: RunFolder, *, progress: bool, resume: bool) -> Learned:
        """Attach the adapter and train it."""
        order, collator = self.order, Collator(self.renderer.pad_token_id)
        identity = Promise.IDENTITY in order.tuner.keeps
        before = None if identity else self._loss(base, collator)
        adapted = attach(base.model, order.tuner, order.tuner_settings, seed=order.seed)
        result = train(
            adapted,
            self.rows.train,
            self.rows.evaluation,
            collator,
            order.training,
            folder,
            seed=order.seed,
            progress=progress,
            resume=resume,
        )
        before = loss_before_training(folder) if identity else before
        metrics = result.to_dict() | {"base_evaluation_loss": before, "rows": self.rows.report.to_dict()}
        return Learned(adapted.eval(), count_parameters(adapted), metrics)

    def _loss(self, base: Base, collator: Collator) -> float | None:
        """Return the base's loss over the rows that are held out, or None where there are none."""
        held_out = self.rows.evaluation
        return loss_of(base.model, held_out, collator, self.order.training) if held_out else None

    def _plan(self) -> Plan:
        return Plan(self.order.training, len(self.rows.train), self.order.seed)


def loss_before_training(folder: RunFolder) -> float | None:
    """Return the evaluation loss of step 0, which is the base's where attaching changes nothing."""
    return next((event.get(LOSS) for event in read_events(folder.path) if event["step"] == 0), None)


class PlainLearner:
    """Reads labelled rows."""

    def read(self, order: Order) -> PlainLesson:
        """Read and split the files."""
        renderer = Renderer(load_tokenizer(order.source), order.data.template, order.data.system)
        rows = load_examples(order.files, renderer, order.data, seed=order.seed, progress=order.show)
        lesson = PlainLesson(order, renderer, rows)
        plan = lesson._plan()
        if plan.warmup_is_cut:
            log.info(
                "training.warmup_steps is cut to %d: at most half of the %d steps", plan.warmup_steps, plan.total_steps
            )
        return lesson
