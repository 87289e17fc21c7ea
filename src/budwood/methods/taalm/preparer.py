"""How a scorer is made for a base: pairs of a text and a question -> J_t -> a scorer that beats uniform weights.

    corpus rows        facts, {"document", "question", "answer"}, or {"session", "next_session"}
    stage 1            on J_t, the first-order effect of each token on the answer (`lessons`, `meta_training`)
    stage 2            on the true loss after an inner step, where `meta` is given

J_t is measured in fp32, at the start of the very adapter that documents are learned with: a fresh LoRA on the top
layers, or the adapter of the run that is to be gone on from.
A scorer that does not beat uniform weights on the validation texts is not written: its weights would only do harm.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peft import PeftModel

from budwood.data.facts import Pair, read_pairs
from budwood.data.offsets import OffsetTokens
from budwood.data.probes import encode_probes
from budwood.data.render import Encoded
from budwood.errors import DataError, TrainingError
from budwood.evals.progress import progress_shown
from budwood.methods.taalm.earlier import EarlierRun
from budwood.methods.taalm.lessons import Lesson, digest, measure
from budwood.methods.taalm.loop import Course, Progress
from budwood.methods.taalm.meta_training import Outcome, train_on_importance, train_on_outcome
from budwood.methods.taalm.passages import Passage, from_texts
from budwood.methods.taalm.preparation_settings import ScorerSettings
from budwood.methods.taalm.prior import PriorFacts, make_scorer, write_prior
from budwood.methods.taalm.row_cache import RowCache
from budwood.methods.taalm.scorer import TrainableScorer
from budwood.methods.taalm.settings import BodySettings, HeadSettings
from budwood.methods.taalm.top_layers import at_the_top, top_count
from budwood.models import Base, load_base, load_config, load_tokenizer
from budwood.storage import cache_dir
from budwood.training.blocks import find_cut
from budwood.training.folder import RunFolder
from budwood.tuning.attach import attach, quiet_peft
from budwood.tuning.prepared import Preparation
from budwood.tuning.registry import find_tuner

TUNER = "lora"  # of θ, at whose start J_t is measured
FEWEST = 16  # pairs; a scorer that is of use wants hundreds


@dataclass(frozen=True)
class Texts:
    """Texts and the questions about them, in pairs, as tokens."""

    passages: list[Passage]
    probes: list[Encoded]

    def __len__(self) -> int:
        return len(self.passages)


class ScorerPreparer:
    """Reads pairs."""

    @property
    def settings(self) -> type[ScorerSettings]:
        return ScorerSettings

    def read(self, order: Preparation) -> ReadyScorer:
        """Read and divide the corpus; what cannot be used is refused here."""
        settings = order.settings
        assert isinstance(settings, ScorerSettings)
        tokens = OffsetTokens(load_tokenizer(order.source))
        pairs = [pair for file in order.corpus for pair in read_pairs(file)]
        if settings.validation is not None:
            judged = list(read_pairs(settings.validation))
        else:
            pairs, judged = _divided(pairs, settings.validation_share, order.seed)
        train, validation = (_encoded(part, tokens, settings.longest) for part in (pairs, judged))
        dropped = len(pairs) + len(judged) - len(train) - len(validation)
        if len(train) < FEWEST or len(validation) < 2:
            raise DataError(
                f"{len(train)} texts to train a scorer on and {len(validation)} to judge it by; {dropped} are longer"
                f" than {settings.longest} tokens",
                wanted=f"{FEWEST} and 2 at least; hundreds make a good scorer",
                action="give more rows, or longer texts with --set longest=N",
            )
        earlier = None if order.start is None else EarlierRun.read(order.start)
        return ReadyScorer(order, settings, train, validation, dropped, earlier)


@dataclass(frozen=True)
class ReadyScorer:
    """A corpus as tokens, divided into texts to train on and texts to judge by."""

    order: Preparation
    settings: ScorerSettings
    train: Texts
    validation: Texts
    dropped: int
    earlier: EarlierRun | None = None

    def outline(self) -> dict[str, Any]:
        """Say what `make` would do, without weights."""
        return {
            "texts": len(self.train),
            "validation_texts": len(self.validation),
            "dropped": self.dropped,
            "body": self.settings.body.kind,
            "steps": self.settings.stage.steps + (self.settings.meta.steps if self.settings.meta else 0),
        }

    def make(self, folder: RunFolder, *, progress: bool) -> dict[str, Any]:
        """Measure J_t, train the scorer, and write it if it beats uniform weights.

        Raises:
            TrainingError: it does not.
        """
        base = load_base(self.order.source, dtype="float32", device=self.order.device)
        model = self._adapted(base)
        with progress_shown(progress) as show:
            lessons, validation = self._lessons(base, model, show)
            body = self._body(model)
            scorer = make_scorer(model, body, seed=self.order.seed)
            outcome = self._trained(
                scorer, model, lessons, validation, Course(folder.checkpoints, self.order.seed, show)
            )
        if not outcome.beats_uniform:
            raise TrainingError(
                f"the scorer does not beat uniform weights on {len(validation)} validation texts:"
                f" {outcome.measure} {outcome.value:.3f}, uniform {outcome.uniform:.3f}",
                wanted="weights that are of use; nothing was published",
                action="give more rows of more kinds, or adapt with --weights uniform",
            )
        judged: dict[str, float | str] = {
            outcome.measure: outcome.value,
            "uniform": outcome.uniform,
            "step": float(outcome.step),
        }
        write_prior(folder.path, scorer, self._facts(body, lessons, judged))
        return (
            self.outline() | {"parameters": sum(value.numel() for value in scorer.trained_state().values())} | judged
        )

    def _adapted(self, base: Base) -> PeftModel:
        if self.earlier is not None:
            with quiet_peft():
                return PeftModel.from_pretrained(base.model, str(self.earlier.weights.parent), is_trainable=True)
        tuner = find_tuner(TUNER)
        settings = at_the_top(tuner.settings(), self._depth(), self.settings.top_layers)
        return attach(base.model, tuner, settings, seed=self.order.seed)

    def _lessons(self, base: Base, model: PeftModel, show: Progress | None) -> tuple[list[Lesson], list[Lesson]]:
        """Return the lessons of both parts; J_t is kept in the user's cache as it is measured, for all bodies."""
        top = top_count(self._depth(), self.settings.top_layers)
        adapter = self.earlier.digest if self.earlier else f"{TUNER} top {top} seed {self.order.seed}"
        name = f"{base.source.fingerprint} {adapter}"
        cache = RowCache(cache_dir() / "importance", name)
        parts = (self.train, self.validation)
        train, judged = (measure(model, one.passages, one.probes, cache=cache, progress=show) for one in parts)
        return train, judged

    def _trained(
        self,
        scorer: TrainableScorer,
        model: PeftModel,
        lessons: list[Lesson],
        validation: list[Lesson],
        course: Course,
    ) -> Outcome:
        outcome = train_on_importance(scorer, lessons, validation, self.settings.stage, course)
        if self.settings.meta is None or not outcome.beats_uniform:
            return outcome
        return train_on_outcome(scorer, model, lessons, validation, self.settings.meta, course)

    def _body(self, model: PeftModel) -> BodySettings:
        """Return the body; a head reads what enters the lowest adapted layer unless told otherwise."""
        body = self.settings.body
        if isinstance(body, HeadSettings) and not body.layers:
            depth = self._depth()
            cut = find_cut(model) if self.earlier else depth - top_count(depth, self.settings.top_layers)
            return body.model_copy(update={"layers": (cut,)})
        return body

    def _facts(self, body: BodySettings, lessons: list[Lesson], judged: dict[str, float | str]) -> PriorFacts:
        return PriorFacts(
            base=str(self.order.source.reference),
            fingerprint=self.order.source.fingerprint,
            data=digest(lessons),
            body=body,
            weights=self.settings.weights,
            judged=judged,
            seed=self.order.seed,
        )

    def _depth(self) -> int:
        return int(load_config(self.order.source).get_text_config().num_hidden_layers)


def _divided(pairs: Sequence[Pair], share: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Hold out a share of the texts; rows that share a text stay on one side."""
    texts = sorted({pair.evidence for pair in pairs})
    held_out = set(random.Random(f"validation {seed}").sample(texts, round(share * len(texts))))
    return (
        [pair for pair in pairs if pair.evidence not in held_out],
        [pair for pair in pairs if pair.evidence in held_out],
    )


def _encoded(pairs: Sequence[Pair], tokens: OffsetTokens, longest: int) -> Texts:
    """Return pairs as tokens, without those of which a part is too long."""
    passages = from_texts([pair.evidence for pair in pairs], [pair.origin for pair in pairs], tokens)
    probes = encode_probes([pair.task for pair in pairs], tokens)
    kept = [
        (passage, probe)
        for passage, probe in zip(passages, probes, strict=True)
        if max(len(passage.spans), len(probe.input_ids)) <= longest
    ]
    return Texts([passage for passage, _ in kept], [probe for _, probe in kept])
