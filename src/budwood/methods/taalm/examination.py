"""What a model knows while it learns from documents, at one look: kinds of probes that must not be mixed up.

    own_words      blanks made from the documents: memorisation of their own words
    other_words    the user's questions: whether a fact can be used in other words
    keep           general facts that the model knew at the start: what should not be forgotten
    earlier        what an earlier run had learned, where this one goes on from it: the same

An epoch is judged by `cost`, the lower the better: the most learned, in other words where they are asked, among the
epochs that keep enough; where none does, the one that keeps most.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from budwood.data.documents import Cloze
from budwood.data.keep_set import KeepFact
from budwood.data.offsets import OffsetTokens
from budwood.data.probes import Probe, encode_probes
from budwood.data.render import Encoded
from budwood.evals.curves import CurvePoint
from budwood.evals.progress import progress_shown
from budwood.evals.recall import LEAD, Recall, known_facts, score_probes
from budwood.methods.taalm.remembered import Start

log = logging.getLogger(__name__)
NAME = "recall"  # of the probe in the events of a run
JUDGED_BY = f"{NAME}/cost"
KEPT = ("keep", "earlier")  # each of these kinds is to be kept by itself: the least of them counts
TIE = 1e-3  # what the NLL may add to the cost: less than one fact, so it decides between equals


@dataclass(frozen=True)
class Questions:
    """Probes of each kind, before a base is loaded."""

    own_words: tuple[Cloze, ...]
    other_words: tuple[Probe, ...]
    keep: tuple[KeepFact, ...]
    earlier: tuple[Probe, ...] = ()


@dataclass(frozen=True)
class Examination:
    """Encoded probes, with what the base makes of them.

    Attributes:
        probes: the probes by kind; a kind without any is left out.
        encoded: the same as ids.
        before: the scores of the model at the start.
        keep: the share of the known facts that is to be kept.
    """

    probes: Mapping[str, Sequence[Probe]]
    encoded: Mapping[str, Sequence[Encoded]]
    before: Mapping[str, Recall]
    keep: float

    @classmethod
    def of(
        cls, start: Start, questions: Questions, tokens: OffsetTokens, keep: float, *, progress: bool
    ) -> Examination:
        """Select what the model knows at the start, and score it on the rest."""
        known = known_probes(start, questions.keep, tokens, progress=progress)
        kinds = {
            "own_words": [cloze.probe for cloze in questions.own_words],
            "other_words": questions.other_words,
            "keep": known,
            "earlier": _still_known(start, questions.earlier, tokens),
        }
        probes = {name: asked for name, asked in kinds.items() if asked}
        encoded = {name: encode_probes(asked, tokens) for name, asked in probes.items()}
        before = {name: score_probes(start.model, rows) for name, rows in encoded.items()}
        if questions.keep and not known:
            log.warning("the base knows none of the %d facts that it should keep: forgetting is not measured",
                        len(questions.keep))  # fmt: skip
        return cls(probes, encoded, before, keep)

    @property
    def learned(self) -> str:
        """The kind of probes that tells how much was learned."""
        return "other_words" if "other_words" in self.probes else "own_words"

    def score(self, model: nn.Module) -> dict[str, Recall]:
        """Return the scores of a model, by kind."""
        return {name: score_probes(model, rows) for name, rows in self.encoded.items()}

    def look(self, model: nn.Module) -> dict[str, float]:
        """Return the figures of a model for the events of a run; the cost is among them."""
        found = self.score(model)
        figures = {
            f"{name}_{figure}": getattr(recall, figure) for name, recall in found.items() for figure in _FIGURES
        }
        learned = found[self.learned]
        kept = min((found[name].accuracy for name in KEPT if name in found), default=1.0)
        return figures | {"kept": kept, "cost": cost(learned.accuracy, learned.nll, kept, self.keep)}

    def told(self, event: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Return the means of one look by kind, as `Recall.to_dict` has them, from its event.

        In 16 bits a second look, in other batches, may round one hit in hundreds otherwise; the epoch was chosen by
        these.
        """
        return {
            name: {"probes": len(asked), **{figure: event[f"{NAME}/{name}_{figure}"] for figure in _FIGURES}}
            for name, asked in self.probes.items()
        }

    def curve(self, events: Sequence[Mapping[str, Any]]) -> list[CurvePoint]:
        """Return what was learned against what was kept at each look, from the events of the run."""
        looks = [event for event in events if JUDGED_BY in event]
        return [self._point(event) for event in looks]

    def _point(self, event: Mapping[str, Any]) -> CurvePoint:
        learn, nll = (event[f"{NAME}/{self.learned}_{figure}"] for figure in ("accuracy", "nll"))
        return CurvePoint(event.get("epoch", 0.0), learn, event[f"{NAME}/kept"], nll)


_FIGURES = ("accuracy", "exact", "nll")


def cost(learn: float, nll: float, kept: float, keep: float) -> float:
    """Return what the published epoch has the lowest of: −learn, of equals by NLL; above 1 where too little is kept.

    Args:
        learn, kept: accuracies.
        nll: nats a token of what is to be learned, at least 0.
        keep: the least that `kept` should be.
    """
    return 1 + (1 - kept) if kept < keep else TIE * nll / (1 + nll) - learn


def known_probes(start: Start, facts: Sequence[KeepFact], tokens: OffsetTokens, *, progress: bool) -> list[Probe]:
    """Return the probes of what a model knows; they are found once for it and kept in the user's cache."""
    by_text = {probe.text: probe for fact in facts for probe in fact.probes}

    def find() -> list[str]:
        with progress_shown(progress) as show:
            found = known_facts(start.model, facts, tokens, progress=show) if facts else []
        return [probe.text for probe in found]

    return [by_text[text] for text in start.remembered("known_facts", [str(LEAD), *by_text], find)]


def _still_known(start: Start, probes: Sequence[Probe], tokens: OffsetTokens) -> list[Probe]:
    """Return the probes that a model answers in full."""
    if not probes:
        return []
    scores = score_probes(start.model, encode_probes(probes, tokens)).scores
    return [probe for probe, score in zip(probes, scores, strict=True) if score.exact]
