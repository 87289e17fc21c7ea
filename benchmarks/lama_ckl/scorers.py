"""Scorers of the table: those that ship, and those trained here, which are kept in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from budwood.data.render import Encoded
from budwood.errors import DataError
from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.methods.taalm.lessons import Lesson, digest, measure
from budwood.methods.taalm.loop import Course
from budwood.methods.taalm.meta_training import Outcome, train_on_importance, train_on_outcome
from budwood.methods.taalm.passages import Passage
from budwood.methods.taalm.prior import PriorFacts, load_prior, make_scorer, save_prior
from budwood.methods.taalm.row_cache import RowCache
from budwood.methods.taalm.scorer import TrainableScorer
from budwood.methods.taalm.weighting import find_prior
from budwood.models import Base

from .arms import INVENTED, Learned, Shipped
from .facts import Facts, invented_facts, load_facts, without
from .learning import Schedule, adapted

THETA_SEED = 0  # of the adapter at which J_t is measured; runs have other seeds
SCORERS = Path(__file__).parents[2] / "src" / "budwood" / "resources" / "scorers"


@dataclass(frozen=True)
class Workshop:
    """What weights are made from.

    Attributes:
        base: frozen.
        tokens: of the base, with offsets.
        data: the folder of the splits.
        work: the folder of what is kept.
        schedule: of the runs; RHO-1's reference is trained by it.
        vocabulary: the split whose relations are the user's; what of it is to be learned is left out.
    """

    base: Base
    tokens: Any
    data: Path
    work: Path
    schedule: Schedule
    vocabulary: str = "to_learn_dev"

    def facts(self, split: str, *, within: bool = False, most: int | None = None) -> Facts:
        return load_facts(self.data, split, self.tokens, within=within, most=most)


def make_scores(
    shop: Workshop, source: Learned | Shipped, passages: Sequence[Passage]
) -> tuple[list[Tensor], dict[str, Any]]:
    """Return the scores of passages, and how the scorer was judged when it was trained."""
    scorer, judged = trained_scorer(shop, source, passages) if isinstance(source, Learned) else shipped(shop, source)
    return scorer.scores(passages), judged


def shipped(shop: Workshop, source: Shipped) -> tuple[TrainableScorer, dict[str, Any]]:
    """Return a scorer of the package.

    Raises:
        BaseMismatchError: it reads the states of another base.
        ModelError: its encoder is not installed.
    """
    prior = find_prior(DocumentSettings(prior=SCORERS / source.folder), shop.base.source)
    assert prior is not None  # a prior that is named is found, or there is an error
    scorer, facts = load_prior(prior, shop.base.model, fingerprint=shop.base.source.fingerprint, force=True)
    return scorer, {"data": facts.data[:12], **facts.judged}


def trained_scorer(
    shop: Workshop, learned: Learned, to_learn: Sequence[Passage]
) -> tuple[TrainableScorer, dict[str, Any]]:
    """Return the scorer of an arm, from `shop.work` if it was trained before.

    Args:
        to_learn: the passages of the facts to learn, which no scorer is trained on.
    """
    train, validation = _training_facts(shop, learned, to_learn), shop.facts("ta_val_cpu")
    said = f"{learned!r} {shop.base.source.fingerprint} {shop.base.model.dtype} {_texts(train)}"
    folder = shop.work / f"prior-{hashlib.sha256(said.encode()).hexdigest()[:12]}"
    if (folder / "prior").exists():
        scorer, facts = load_prior(folder / "prior", shop.base.model, fingerprint=shop.base.source.fingerprint)
        return scorer, dict(facts.judged)
    scorer = make_scorer(shop.base.model, learned.body, seed=0)
    rows = [row for one in (train, validation) for row in _rows(one)]
    with adapted(shop.base, rows, shop.work / "prefix", rank=shop.schedule.rank, seed=THETA_SEED) as model:
        training, judging = (lessons(shop, model, one) for one in (train, validation))
        judged = _figures(train_on_importance(scorer, training, judging, learned.stage, Course(folder)))
        if learned.meta is not None:
            judged |= _figures(train_on_outcome(scorer, model, training, judging, learned.meta, Course(folder)))
    facts = PriorFacts(
        base=str(shop.base.source.reference),
        fingerprint=shop.base.source.fingerprint,
        data=digest(training),
        body=learned.body,
        judged=judged,
    )
    save_prior(folder / "prior", scorer, facts)
    return scorer.eval(), dict(judged)


def lessons(shop: Workshop, model: torch.nn.Module, facts: Facts) -> list[Lesson]:
    """Return the facts with J_t at the adapter's present values, from `shop.work` if it was measured before."""
    name = f"J {shop.base.source.fingerprint} {shop.base.model.dtype} rank {shop.schedule.rank} seed {THETA_SEED}"
    return measure(model, facts.passages, facts.schematic, cache=RowCache(shop.work / "importance", name))


def _training_facts(shop: Workshop, learned: Learned, to_learn: Sequence[Passage]) -> Facts:
    parts = [shop.facts("ta_train_cpu")] if learned.real else []
    if learned.more:
        known = {passage.text for passage in shop.facts("ta_train_cpu").passages}
        parts.append(without(shop.facts("ta_train", within=True), known))
    if learned.vocabulary:
        asked = {passage.text for passage in to_learn}
        parts.append(without(shop.facts(shop.vocabulary, within=True), asked))
    if learned.invented:
        parts.append(invented_facts(INVENTED, 0, shop.tokens))
    if not parts:
        raise DataError("the arm names no facts to train a scorer on", wanted="real, invented or vocabulary")
    total, *others = parts
    for part in others:
        total = total + part
    return total


def _texts(facts: Facts) -> str:
    """Return a digest of what a scorer is trained on: it is trained anew where the facts have changed."""
    return hashlib.sha256("\n".join(passage.text for passage in facts.passages).encode()).hexdigest()


def _rows(facts: Facts) -> list[Encoded]:
    return [*(passage.encoded for passage in facts.passages), *facts.schematic]


def _figures(outcome: Outcome) -> dict[str, float | str]:
    values = {"step": outcome.step, "value": round(outcome.value, 4), "uniform": round(outcome.uniform, 4)}
    return {f"{outcome.measure}_{name}": value for name, value in values.items()}
