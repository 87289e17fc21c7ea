"""What keeps old knowledge while documents are learned: text that is reviewed or anchored, and the update.

Reviewed text is what the model knows, since only that can be forgotten: facts of the keep-set that it knows, or what
it writes itself when it is given their beginnings (pseudo-rehearsal; Robins, 1995). Text of the user's is taken as it
is. No fact that serves as text here is examined (`notes.py`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from peft import PeftModel

from budwood.data.keep_set import KeepFact
from budwood.data.offsets import OffsetTokens
from budwood.data.problems import Origin
from budwood.data.render import UNTRAINED, Encoded, Renderer
from budwood.errors import DataError
from budwood.evals.generation import Sampling, generate
from budwood.evals.progress import progress_shown
from budwood.methods.taalm.examination import known_probes
from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.methods.taalm.notes import Notes
from budwood.methods.taalm.passages import from_texts
from budwood.methods.taalm.recadam import recadam
from budwood.methods.taalm.remembered import Start
from budwood.training.anchor import Anchor
from budwood.training.retention import Retention
from budwood.training.review import Review
from budwood.training.settings import TrainingSettings

if TYPE_CHECKING:
    from budwood.training.feed import Collate

ANCHORS = 256  # pieces of anchor text at most: their states stay in memory
GENERATED = Origin("text that the model wrote itself")


@dataclass(frozen=True)
class OldText:
    """Rows of what is to be kept; empty where nothing is reviewed or anchored."""

    reviewed: list[Encoded]
    anchors: list[Encoded]

    @classmethod
    def of(
        cls, start: Start, notes: Notes, settings: DocumentSettings, renderer: Renderer, *, seed: int, progress: bool
    ) -> OldText:
        """Find out what the model knows, or let it write.

        Raises:
            DataError: there is nothing that could be reviewed or anchored.
        """
        tokens = OffsetTokens(renderer.tokenizer)
        reviewed: list[Encoded] = []
        if settings.review == "generated":
            reviewed = _written(start, notes.reserved, tokens, renderer, settings, seed, progress)
        elif settings.review == "known":
            reviewed = _known(start, notes.reserved, tokens, progress)
        elif settings.review == "older":
            reviewed = notes.older
        anchors: list[Encoded] = []
        if settings.anchor:
            anchors = notes.anchors or notes.older or _known(start, notes.reserved, tokens, progress)
        return cls(reviewed, random.Random(f"anchors {seed}").sample(anchors, min(len(anchors), ANCHORS)))

    def retention(
        self,
        adapted: PeftModel,
        collate: Collate,
        settings: DocumentSettings,
        training: TrainingSettings,
        *,
        fresh: bool,
    ) -> Retention | None:
        """Return what training does to keep what the model knew; None where it does nothing.

        Args:
            adapted: the model at its start.
            fresh: whether the adapter is one that has learned nothing, so that the base without it is the reference.

        Raises:
            NotSupportedError: the anchor or the update does not fit this model.
        """
        anchor = None
        if self.anchors:
            anchor = Anchor.of(
                adapted,
                self.anchors,
                collate,
                weight=settings.anchor,
                rows_per_step=settings.anchor_rows,
                batch_size=training.batch_size,
                without=adapted.disable_adapter() if fresh else None,
            )
        review = Review(self.reviewed, settings.mix_ratio, settings.mix_decay) if self.reviewed else None
        pulled = settings.update == "recadam"
        optimiser = partial(recadam, settings=settings, training=training) if pulled else None
        return Retention(anchor, review, optimiser) if anchor or review or optimiser else None


def _known(start: Start, facts: Sequence[KeepFact], tokens: OffsetTokens, progress: bool) -> list[Encoded]:
    """Return the statements of the facts that a model knows, each as a row of its own."""
    known = known_probes(start, facts, tokens, progress=progress)
    if not known:
        raise DataError(
            f"the base knows none of {len(facts)} facts of the keep-set, so there is nothing to review or anchor",
            wanted="facts that it knows, or text",
            action="give text with --rehearse FILE and learner.review=older, or other facts with learner.keep_set",
        )
    passages = from_texts([probe.text for probe in known], [probe.origin for probe in known], tokens)
    return [passage.encoded for passage in passages]


def _written(
    start: Start,
    facts: Sequence[KeepFact],
    tokens: OffsetTokens,
    renderer: Renderer,
    settings: DocumentSettings,
    seed: int,
    progress: bool,
) -> list[Encoded]:
    """Return what a model writes after the beginnings of facts, drawn at temperature 1; only that has a loss."""
    if not facts:
        raise DataError(
            "the keep-set has no facts to begin with", wanted="two facts at least", action="change learner.keep_set"
        )
    begun = [one.ids for one in tokens.encode([fact.prompts[0] for fact in facts])]
    prompts = [begun[i % len(begun)] for i in range(settings.generated)]
    room = max(1, settings.window - max(map(len, prompts)))

    def write() -> list[list[int]]:
        with progress_shown(progress) as show:
            made = generate(
                start.model, prompts, renderer, max_new_tokens=room, sampling=Sampling(seed=seed), progress=show
            )
        return [list(one.ids) for one in made]

    said = [*(fact.prompts[0] for fact in facts), str(settings.generated), str(room), str(seed)]
    texts = start.remembered("generated", said, write)
    rows = [_row(before, after, i) for i, (before, after) in enumerate(zip(prompts, texts, strict=True)) if after]
    if not rows:
        raise DataError(
            "the base wrote nothing after the beginnings of facts",
            wanted="a base that goes on with a text",
            action="review what it knows with learner.review=known, or older text with --rehearse",
        )
    return rows


def _row(before: list[int], after: list[int], index: int) -> Encoded:
    labels, weights = [UNTRAINED] * len(before) + after, [0.0] * len(before) + [1.0] * len(after)
    return Encoded([*before, *after], labels, weights, GENERATED, index)
