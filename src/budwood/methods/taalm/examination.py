"""What a model knows while it learns from documents, at one look: three kinds of probes that must not be mixed up.

    own_words      blanks made from the documents: memorisation of their own words
    other_words    the user's questions: whether a fact can be used in other words
    keep           general facts that the base knows: what should not be forgotten

An epoch is judged by `cost`, the lower the better: the most learned, in other words where they are asked, among the
epochs that keep enough; where none does, the one that keeps most.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from budwood import storage
from budwood.data.documents import Cloze
from budwood.data.keep_set import KeepFact
from budwood.data.offsets import OffsetTokens
from budwood.data.probes import Probe, encode_probes
from budwood.data.render import Encoded
from budwood.evals.curves import CurvePoint
from budwood.evals.progress import progress_shown
from budwood.evals.recall import Recall, known_facts, score_probes
from budwood.models import Base
from budwood.storage import cache_dir

log = logging.getLogger(__name__)
NAME = "recall"  # of the probe in the events of a run
JUDGED_BY = f"{NAME}/cost"
TIE = 1e-3  # what the NLL may add to the cost: less than one fact, so it decides between equals


@dataclass(frozen=True)
class Questions:
    """Probes of each kind, before a base is loaded."""

    own_words: tuple[Cloze, ...]
    other_words: tuple[Probe, ...]
    keep: tuple[KeepFact, ...]


@dataclass(frozen=True)
class Examination:
    """Encoded probes, with what the base makes of them.

    Attributes:
        probes: the probes by kind; a kind without any is left out.
        encoded: the same as ids.
        before: the scores of the base.
        keep: the share of the known facts that is to be kept.
    """

    probes: Mapping[str, Sequence[Probe]]
    encoded: Mapping[str, Sequence[Encoded]]
    before: Mapping[str, Recall]
    keep: float

    @classmethod
    def of(cls, base: Base, questions: Questions, tokens: OffsetTokens, keep: float, *, progress: bool) -> Examination:
        """Select what the base knows, and score it on the rest; `base` is bare."""
        known = _known(base, questions.keep, tokens, progress)
        kinds = {
            "own_words": [cloze.probe for cloze in questions.own_words],
            "other_words": questions.other_words,
            "keep": known,
        }
        probes = {name: asked for name, asked in kinds.items() if asked}
        encoded = {name: encode_probes(asked, tokens) for name, asked in probes.items()}
        before = {name: score_probes(base.model, rows) for name, rows in encoded.items()}
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
        learned, kept = found[self.learned], found.get("keep")
        return figures | {"cost": cost(learned.accuracy, learned.nll, kept.accuracy if kept else 1.0, self.keep)}

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
        return CurvePoint(event.get("epoch", 0.0), learn, event.get(f"{NAME}/keep_accuracy", 1.0), nll)


_FIGURES = ("accuracy", "exact", "nll")


def cost(learn: float, nll: float, kept: float, keep: float) -> float:
    """Return what the published epoch has the lowest of: −learn, of equals by NLL; above 1 where too little is kept.

    Args:
        learn, kept: accuracies.
        nll: nats a token of what is to be learned, at least 0.
        keep: the least that `kept` should be.
    """
    return 1 + (1 - kept) if kept < keep else TIE * nll / (1 + nll) - learn


def _known(base: Base, facts: Sequence[KeepFact], tokens: OffsetTokens, progress: bool) -> list[Probe]:
    """Return the probes of what the base knows; they are found once for a base and kept in the user's cache."""
    asked = [probe for fact in facts for probe in fact.probes]
    by_text = {probe.text: probe for probe in asked}
    model = base.model
    said = [base.source.fingerprint, str(base.source.reference.quantisation), str(model.dtype), list(by_text)]
    path = cache_dir() / "known_facts" / f"{hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]}.json"
    try:
        kept = storage.read_json(path)
    except (OSError, ValueError):
        with progress_shown(progress) as show:
            kept = [probe.text for probe in known_facts(model, facts, tokens, progress=show)] if facts else []
        storage.write_json(path, kept)
    return [by_text[text] for text in kept]
