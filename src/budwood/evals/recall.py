"""Whether a model knows facts: how it predicts the object of a probe, given the right tokens before each.

Accuracy is TAALM's (Seo et al., 2024, https://arxiv.org/abs/2407.16920): the share of the object's tokens that are the
most likely ones, averaged within the object and then over facts, so that a part of a name counts as a part. The strict
figure counts whole objects only. Nothing is generated. Two kinds of probes must not be mixed up: blanks made from the
documents measure *memorisation*, in the document's own words; rows of facts measure what can be used in *other words*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from budwood.data.documents import Cloze, Document, DocumentReport
from budwood.data.keep_set import KeepFact
from budwood.data.offsets import OffsetTokens
from budwood.data.probes import Probe, encode_probes
from budwood.data.problems import Origin
from budwood.data.render import Encoded
from budwood.errors import DataError, NonFiniteError
from budwood.evals._running import BatchSize, Progress
from budwood.evals.likelihood import likelihoods

LEAD = 0.25  # of logits, whose digits in bf16 are .125 apart between 16 and 32


@dataclass(frozen=True, slots=True)
class ProbeScore:
    """How one probe went.

    Attributes:
        origin: where the probe came from, so that hits can be followed fact by fact over a run.
        accuracy: the share of the object's tokens that were the most likely ones.
        exact: whether all were.
        nll: nats a token of the object.
        tokens: how many it has.
    """

    origin: Origin
    accuracy: float
    exact: bool
    nll: float
    tokens: int

    def to_dict(self) -> dict[str, Any]:
        """The score as a row of a file; the place of the probe is `file` and `line`."""
        values = {name: value for name, value in asdict(self).items() if name != "origin"}
        return {"file": self.origin.file, "line": self.origin.line} | values


@dataclass(frozen=True)
class Recall:
    """The scores of probes, in their order, and their means, in which each probe counts alike."""

    scores: tuple[ProbeScore, ...]

    @property
    def accuracy(self) -> float:
        """Mean accuracy, with credit for parts of an object."""
        return sum(score.accuracy for score in self.scores) / len(self.scores)

    @property
    def exact(self) -> float:
        """The share of probes whose whole object was predicted."""
        return sum(score.exact for score in self.scores) / len(self.scores)

    @property
    def nll(self) -> float:
        """Mean NLL, in nats a token of the object."""
        return sum(score.nll for score in self.scores) / len(self.scores)

    def to_dict(self) -> dict[str, float | int]:
        """The means as a JSON object; the scores are rows of a file."""
        return {"probes": len(self.scores), "accuracy": self.accuracy, "exact": self.exact, "nll": self.nll}


def score_probes(
    model: nn.Module,
    probes: Sequence[Encoded],
    *,
    batch_size: BatchSize = "auto",
    progress: Progress | None = None,
) -> Recall:
    """Score encoded probes.

    Args:
        model: a causal language model, bare or a `PeftModel`; nothing about it is changed.
        probes: at least one, with labels at the tokens of the object: see `encode_probes`. Encoded once, they serve
            for every epoch of a run.
        batch_size: rows a batch, or "auto". In fp32 it changes no hit but for ties in the last digit.
        progress: called as by `likelihoods`.

    Raises:
        DataError: there are no probes, or one has no labels.
        NonFiniteError: a likelihood is NaN or infinite.
    """
    if not probes:
        raise DataError("there are no probes", wanted="at least one", action="check the file of facts")
    found = likelihoods(model, probes, batch_size=batch_size, progress=progress)
    scores = []
    for probe, one in zip(probes, found, strict=True):
        if not one.tokens:
            raise DataError(f"{probe.origin}: the probe asks for nothing", wanted="an object with at least one token")
        if not math.isfinite(one.nll):
            raise NonFiniteError(f"{probe.origin}: the likelihood of the object is {one.nll}", wanted="finite logits")
        accuracy, nll = float(one.token_hits.mean()), one.nll / one.tokens
        scores.append(ProbeScore(probe.origin, accuracy, one.exact, nll, one.tokens))
    return Recall(tuple(scores))


def known_facts(
    model: nn.Module,
    facts: Sequence[KeepFact],
    tokens: OffsetTokens,
    *,
    batch_size: BatchSize = "auto",
    progress: Progress | None = None,
) -> list[Probe]:
    """Return what a base should keep: of each fact that it knows the first prompt under which it predicts the object.

    Each token of the object must lead by `LEAD`. Other batches, kernels or cached layers round in another way: with
    the packaged default in bf16, up to one in thirty of the facts that won by a hair were lost before anything was
    trained. What leads by more is lost by forgetting only.
    """
    asked = [(index, probe) for index, fact in enumerate(facts) for probe in fact.probes]
    encoded = encode_probes([probe for _, probe in asked], tokens)
    known: dict[int, Probe] = {}
    found = likelihoods(model, encoded, batch_size=batch_size, progress=progress)
    for (index, probe), one in zip(asked, found, strict=True):
        if one.token_leads.min() >= LEAD:
            known.setdefault(index, probe)
    return list(known.values())


def nothing_new(clozes: Sequence[Cloze], base: Recall, report: DocumentReport) -> list[Document]:
    """Return the documents that teach a base nothing, since it fills each of their blanks already; remark on each.

    Args:
        clozes: blanks of the documents; a document without any is not judged.
        base: their scores on the base, in the same order.
        report: that of the documents.
    """
    filled: dict[Document, bool] = {}
    for cloze, score in zip(clozes, base.scores, strict=True):
        filled[cloze.document] = filled.get(cloze.document, True) and score.exact
    known = [document for document, all_filled in filled.items() if all_filled]
    for document in known:
        report.remark("teaches nothing new: the base fills every blank made from it already", document.origin)
    return known
