"""TAALM as a method: documents -> windows -> weights of tokens -> any adapter -> the epoch that learned and kept.

The inner loop is plain weighted training (arXiv 2407.16920, equation 4): the loss of a window is Σ w_t ℓ_t / Σ w_t,
and windows count alike (`training.normalise: sequence`). Weights are made once, before training, since they do not
depend on the adapter. Each epoch is examined, and the one that learned most while it kept enough is published.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel

from budwood.data.collate import Collator
from budwood.data.offsets import OffsetTokens
from budwood.data.render import Encoded, Renderer
from budwood.errors import ConfigError
from budwood.evals.recall import nothing_new
from budwood.methods.taalm.account import write_recall, write_weights
from budwood.methods.taalm.earlier import EarlierRun
from budwood.methods.taalm.examination import JUDGED_BY, NAME, Examination
from budwood.methods.taalm.keeping import OldText
from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.methods.taalm.notes import Notes, read_notes
from budwood.methods.taalm.passages import from_window
from budwood.methods.taalm.recadam import find_pairs, require_no_decay
from budwood.methods.taalm.remembered import Start
from budwood.methods.taalm.top_layers import at_the_top
from budwood.methods.taalm.weighting import find_prior, weigh
from budwood.models import Base, empty_model, load_config, load_tokenizer
from budwood.training.folder import RunFolder, read_events
from budwood.training.plan import Plan
from budwood.training.settings import TrainingSettings
from budwood.training.train import TrainingResult, train
from budwood.tuning.attach import adapted_layers, attach, count_parameters
from budwood.tuning.lesson import Learned, Order, Outline
from budwood.tuning.protocol import TunerSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DocumentLesson:
    """Documents as windows, for one adapter."""

    order: Order
    settings: DocumentSettings
    renderer: Renderer
    tokens: OffsetTokens
    notes: Notes
    earlier: EarlierRun | None

    def outline(self) -> Outline:
        """Say what `learn` would do, without weights."""
        plan, model = self._plan(), self._attached(empty_model(self.order.source))
        rows, layers = self.notes.rows.to_dict(), adapted_layers(model)
        return Outline(count_parameters(model), plan.total_steps, plan.warmup_steps, rows, layers)

    def require_fitting(self) -> None:
        """Refuse an update or an earlier run that does not fit the adapter, before weights are read.

        Raises:
            ConfigError, NotSupportedError: it does not.
        """
        pulled = self.settings.update == "recadam"
        if pulled:
            require_no_decay(self.order.training)
        if pulled or self.earlier:
            model = self._attached(empty_model(self.order.source))
            if pulled:
                find_pairs(model)
            if self.earlier:
                self.earlier.require_fitting(model)

    def learn(self, base: Base, folder: RunFolder, *, progress: bool, resume: bool) -> Learned:
        """Weight the tokens, train, and keep the epoch that learned most among those that kept enough."""
        order, settings = self.order, self.settings
        rows = self._weighted(base, folder)  # a scorer and a rule read the bare base
        adapted = self._with_earlier(base) if self.earlier else None
        start = Start.of(base, adapted, self.earlier.digest if self.earlier else "")
        examination = self._examined(start, progress)
        old = OldText.of(start, self.notes, settings, self.renderer, seed=order.seed, progress=progress)
        adapted = self._attached(base.model) if adapted is None else adapted
        collator, training = Collator(self.renderer.pad_token_id), self._plan().settings
        result = train(
            adapted,
            rows,
            [],
            collator,
            training,
            folder,
            seed=order.seed,
            probes={NAME: examination.look},
            judged_by=JUDGED_BY,
            probed=[row for asked in examination.encoded.values() for row in asked],
            retention=old.retention(adapted, collator, settings, training, fresh=self.earlier is None),
            progress=progress,
            resume=resume,
        )
        assert result.best_step is not None  # the last step is always examined
        events, after = read_events(folder.path), examination.score(adapted)
        figures = write_recall(folder.path, examination, after, events, result.best_step)
        if not figures["kept_enough"]:
            log.warning(
                "no epoch kept %.0f %% of what the base knew: the one that kept most is published; "
                "try a lower training.learning_rate, --rehearse older text, or learner.anchor=1",
                100 * settings.keep,
            )
        return Learned(adapted.eval(), count_parameters(adapted), self._metrics(result, figures))

    def _attached(self, model: PreTrainedModel) -> PeftModel:
        return attach(model, self.order.tuner, self._tuner(), seed=self.order.seed)

    def _with_earlier(self, base: Base) -> PeftModel:
        """Return the base with the adapter of the earlier run."""
        assert self.earlier is not None
        adapted = self._attached(base.model)
        self.earlier.put_into(adapted)
        return adapted

    def _examined(self, start: Start, progress: bool) -> Examination:
        """Examine the model at its start, and say which documents teach it nothing new."""
        notes, settings = self.notes, self.settings
        examination = Examination.of(start, notes.questions, self.tokens, settings.keep, progress=progress)
        if "own_words" in examination.before:
            known = nothing_new(notes.questions.own_words, examination.before["own_words"], notes.report)
            for document in known:
                log.warning("%s teaches nothing new: the base fills every blank made from it", document.origin)
        return examination

    def _weighted(self, base: Base, folder: RunFolder) -> list[Encoded]:
        """Return the rows with their weights, older text last; what was looked at is written into the run."""
        passages = [from_window(window) for window in self.notes.windows]
        weights = weigh(base, passages, self.settings, find_prior(self.settings, self.order.source))
        log.info("weights of tokens: %s", weights.origin)
        windows = [one.weighted(row.tolist()) for one, row in zip(self.notes.windows, weights.values, strict=True)]
        write_weights(folder.path, self.notes.documents, windows, weights.origin)
        return [*(window.encoded for window in windows), *self.notes.rehearsed]

    def _metrics(self, result: TrainingResult, figures: dict[str, Any]) -> dict[str, Any]:
        told = result.to_dict() | {"best_evaluation_loss": None}  # it was judged by recall
        return told | {"rows": self.notes.rows.to_dict(), "recall": figures}

    def _tuner(self) -> TunerSettings:
        depth = int(load_config(self.order.source).get_text_config().num_hidden_layers)
        return at_the_top(self.order.tuner_settings, depth, self.settings.top_layers)

    def _plan(self) -> Plan:
        rows = len(self.notes.windows) + len(self.notes.rehearsed)
        return Plan(_each_epoch(self.order.training, rows), rows, self.order.seed)


def _each_epoch(training: TrainingSettings, rows: int) -> TrainingSettings:
    """Examine and save at the end of each epoch, where the user does not say when."""
    every = Plan(training, rows, seed=0).steps_per_epoch
    left_open = [name for name in ("evaluate_every", "save_every") if getattr(training, name) is None]
    return training.model_copy(update=dict.fromkeys(left_open, every))


class DocumentLearner:
    """Reads documents."""

    def read(self, order: Order) -> DocumentLesson:
        """Read documents, questions and the keep-set, and find the scorer; what cannot be used is refused here."""
        settings = order.learner
        assert isinstance(settings, DocumentSettings)
        if order.data.evaluation_file is not None:
            raise ConfigError(
                "data.evaluation_file: what documents teach is measured by questions",
                action="give a file of questions with --probes instead",
            )
        tokenizer = load_tokenizer(order.source)
        tokens = OffsetTokens(tokenizer)
        earlier = None if order.start is None else EarlierRun.read(order.start)
        notes = read_notes(
            order.files,
            tokens,
            settings,
            max_length=order.data.max_length,
            seed=order.seed,
            earlier=earlier.learned if earlier else (),
            progress=order.show,
        )
        find_prior(settings, order.source)
        renderer = Renderer(tokenizer, order.data.template, order.data.system)
        lesson = DocumentLesson(order, settings, renderer, tokens, notes, earlier)
        lesson.require_fitting()
        return lesson
