"""From an arm to the weights of the tokens: rules at once, scorers after their training, which is kept in a folder."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from budwood.data.render import Encoded
from budwood.errors import UsageError
from budwood.evals.likelihood import likelihoods
from budwood.methods.taalm import heuristics
from budwood.methods.taalm.lessons import Lesson, digest, measure
from budwood.methods.taalm.loop import Course
from budwood.methods.taalm.meta_training import Outcome, train_on_importance, train_on_outcome
from budwood.methods.taalm.passages import Passage
from budwood.methods.taalm.prior import PriorFacts, load_prior, make_scorer, save_prior
from budwood.methods.taalm.reading import Reading, read
from budwood.methods.taalm.row_cache import RowCache
from budwood.methods.taalm.scorer import TrainableScorer, scored_mask
from budwood.methods.taalm.settings import WeightSettings
from budwood.methods.taalm.weights import mixed, token_weights
from budwood.models import Base

from .arms import INVENTED, Arm, Learned
from .facts import Facts, invented_facts, load_facts
from .learning import Schedule, adapted, learn

THETA_SEED = 0  # of the adapter at which J_t is measured; runs have other seeds


@dataclasses.dataclass(frozen=True)
class Workshop:
    """What weights are made from.

    Attributes:
        base: frozen.
        tokens: of the base, with offsets.
        data: the folder of the splits.
        work: the folder of what is kept.
        schedule: of the runs; RHO-1's reference is trained by it.
    """

    base: Base
    tokens: Any
    data: Path
    work: Path
    schedule: Schedule

    def facts(self, split: str, *, within: bool = False) -> Facts:
        return load_facts(self.data, split, self.tokens, within=within)


def make_weights(shop: Workshop, arm: Arm, facts: Facts) -> tuple[list[Tensor], dict[str, Any]]:
    """Return the weights of each passage, and figures about how they were made."""
    settings = WeightSettings(floor=arm.floor)
    if isinstance(arm.weights, Learned):
        scorer, judged = trained_scorer(shop, arm.weights)
        scores = scorer.scores(facts.passages)
        weights = [token_weights(*pair, settings) for pair in zip(facts.passages, scores)]
        return weights, judged | _against(weights, facts)
    raw = _by_rule(shop, arm.weights, facts)
    plain = settings.model_copy(update={"cut_off": 0.0})
    weights = [mixed(passage, one, plain) for passage, one in zip(facts.passages, raw)]
    return weights, _against(weights, facts)


def _against(weights: Sequence[Tensor], facts: Facts) -> dict[str, float]:
    """Return the share of the weight that lies on the objects, and the share of the tokens that have a weight."""
    objects = [heuristics.oracle(passage, [span]) for passage, span in zip(facts.passages, facts.targets)]
    mass = [float((w * o).sum() / w.sum()) for w, o in zip(weights, objects)]
    used = sum(int((w > 0).sum()) for w in weights) / sum(len(passage.scored) for passage in facts.passages)
    return {"object_mass": round(sum(mass) / len(mass), 4), "tokens_used": round(used, 4)}


def _by_rule(shop: Workshop, rule: str, facts: Facts) -> list[Tensor]:
    passages = facts.passages
    if rule in ("uniform", "capitalised"):
        return [getattr(heuristics, rule)(passage) for passage in passages]
    if rule == "oracle":
        return [heuristics.oracle(passage, [span]) for passage, span in zip(passages, facts.targets)]
    readings = read(shop.base.model, passages, ())
    if rule == "entropy":
        return [heuristics.entropy(reading.entropy) for reading in readings]
    if rule in ("one_minus_p", "focal"):
        return [getattr(heuristics, rule)(reading.nll) for reading in readings]
    masks = [scored_mask([passage])[0] for passage in passages]
    if rule == "token_dropping":
        return [heuristics.token_dropping(reading.nll, mask) for reading, mask in zip(readings, masks)]
    if rule == "rho1":
        return _rho1(shop, passages, readings, masks)
    raise UsageError(f"there is no rule {rule!r}")


def _rho1(
    shop: Workshop, passages: Sequence[Passage], readings: Sequence[Reading], masks: Sequence[Tensor]
) -> list[Tensor]:
    """RHO-1 against a reference: the base after an epoch on texts of facts that it knows."""
    pool = shop.facts("replay_pool_cpu")
    texts = [passage.encoded for passage in pool.passages]
    even = [heuristics.uniform(passage) for passage in pool.passages]
    rows = [*texts, *(passage.encoded for passage in passages), *pool.descriptive]
    schedule = dataclasses.replace(shop.schedule, epochs=1)
    with adapted(shop.base, rows, shop.work / "prefix", rank=schedule.rank, seed=THETA_SEED) as model:
        for _ in learn(model, texts, even, pool.descriptive[:1], pool.descriptive[:1], schedule, seed=THETA_SEED):
            pass
        reference = likelihoods(model, [passage.encoded for passage in passages])
    found = []
    for passage, reading, mask, one in zip(passages, readings, masks, reference):
        nll = torch.zeros(len(passage.spans))
        nll[list(passage.scored)] = torch.from_numpy(one.token_nll)
        found.append(heuristics.rho1(reading.nll, nll, mask))
    return found


# --- learned


def trained_scorer(shop: Workshop, learned: Learned) -> tuple[TrainableScorer, dict[str, Any]]:
    """Return the scorer of an arm, from `shop.work` if it was trained before."""
    said = f"{learned!r} {shop.base.source.fingerprint} {shop.base.model.dtype}"
    folder = shop.work / f"prior-{hashlib.sha256(said.encode()).hexdigest()[:12]}"
    if (folder / "prior").exists():
        scorer, facts = load_prior(folder / "prior", shop.base.model, fingerprint=shop.base.source.fingerprint)
        return scorer, dict(facts.judged)
    scorer = make_scorer(shop.base.model, learned.body, seed=0)
    train, validation = _training_facts(shop, learned), shop.facts("ta_val_cpu")
    rows = [row for one in (train, validation) for row in _rows(one)]
    with adapted(shop.base, rows, shop.work / "prefix", rank=shop.schedule.rank, seed=THETA_SEED) as model:
        lessons, judging = (_lessons(shop, model, one) for one in (train, validation))
        outcome = train_on_importance(scorer, lessons, judging, learned.stage, Course(folder))
        judged = _figures(outcome)
        if learned.meta is not None:
            further = train_on_outcome(scorer, model, lessons, judging, learned.meta, Course(folder))
            judged |= _figures(further)
    facts = PriorFacts(
        base=str(shop.base.source.reference),
        fingerprint=shop.base.source.fingerprint,
        data=digest(lessons),
        body=learned.body,
        judged=judged,
    )
    save_prior(folder / "prior", scorer, facts)
    return scorer.eval(), dict(judged)


def _training_facts(shop: Workshop, learned: Learned) -> Facts:
    real = shop.facts("ta_train_cpu") if learned.real else None
    parts = [real] if real is not None else []
    if learned.more:
        known = {passage.text for passage in shop.facts("ta_train_cpu").passages}
        parts.append(_without(shop.facts("ta_train", within=True), known))
    if learned.invented:
        parts.append(invented_facts(INVENTED, 0, shop.tokens))
    total, *others = parts
    for part in others:
        total = total + part
    return total


def _without(facts: Facts, texts: set[str]) -> Facts:
    kept = [i for i, passage in enumerate(facts.passages) if passage.text not in texts]
    return Facts(*(tuple(values[i] for i in kept) for values in vars(facts).values()))


def _lessons(shop: Workshop, model: torch.nn.Module, facts: Facts) -> list[Lesson]:
    name = f"J {shop.base.source.fingerprint} {shop.base.model.dtype} rank {shop.schedule.rank} seed {THETA_SEED}"
    return measure(model, facts.passages, facts.schematic, cache=RowCache(shop.work / "importance", name))


def _rows(facts: Facts) -> list[Encoded]:
    return [*(passage.encoded for passage in facts.passages), *facts.schematic]


def _figures(outcome: Outcome) -> dict[str, float | str]:
    values = {"step": outcome.step, "value": round(outcome.value, 4), "uniform": round(outcome.uniform, 4)}
    return {f"{outcome.measure}_{name}": value for name, value in values.items()}
