"""From an arm to the weights of the tokens: rules at once, scorers after their training."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from budwood.data.render import Encoded
from budwood.evals.likelihood import likelihoods
from budwood.methods.taalm import heuristics
from budwood.methods.taalm.features import STOPWORDS
from budwood.methods.taalm.passages import Passage
from budwood.methods.taalm.reading import Reading, read
from budwood.methods.taalm.scorer import scored_mask
from budwood.methods.taalm.settings import WeightSettings
from budwood.methods.taalm.weighting import RULES
from budwood.methods.taalm.weights import mixed

from .arms import Arm, Rule
from .facts import Facts
from .learning import adapted, epochs
from .scorers import THETA_SEED, Workshop, make_scores
from .shapes import shaped

WORD_CLASSES = ("object", "capitalised", "number", "function word", "punctuation", "other word")
_EVEN = WeightSettings(cut_off=0.0, floor=0.0)


def make_weights(shop: Workshop, arm: Arm, facts: Facts) -> tuple[list[Tensor], dict[str, Any]]:
    """Return the weights of each passage, and figures about how they were made."""
    if isinstance(arm.weights, str):
        raw = by_rule(shop, arm.weights, facts)
        weights = [mixed(passage, one, _EVEN) for passage, one in zip(facts.passages, raw)]
        return weights, against(weights, facts)
    settings = WeightSettings(floor=arm.floor)
    scores, judged = make_scores(shop, arm.weights, facts.passages)
    weights = [shaped(*pair, settings, arm.shape) for pair in zip(facts.passages, scores)]
    return weights, judged | against(weights, facts)


def against(weights: Sequence[Tensor], facts: Facts) -> dict[str, Any]:
    """Return the share of the weight on the objects, the share of tokens with a weight, and the mean by word class.

    Weights are taken with mean 1 over the tokens of a text.
    """
    mass, used, by_class = [], 0, {name: [0.0, 0] for name in WORD_CLASSES}
    for passage, span, w in zip(facts.passages, facts.targets, weights):
        objects = heuristics.oracle(passage, [span])
        mass.append(float((w * objects).sum() / w.sum()))
        used += int((w > 0).sum())
        relative = w * len(passage.scored) / w.sum()
        for t in passage.scored:
            one = by_class["object" if objects[t] else word_class(passage, t)]
            one[0] += float(relative[t])
            one[1] += 1
    return {
        "object_mass": round(sum(mass) / len(mass), 4),
        "tokens_used": round(used / sum(len(passage.scored) for passage in facts.passages), 4),
        "by_class": {name: round(total / count, 4) for name, (total, count) in by_class.items() if count},
    }


def word_class(passage: Passage, t: int) -> str:
    """Return which of `WORD_CLASSES` a token is of, by its own characters; an object is told by who knows it."""
    piece = passage.text[slice(*passage.spans[t])].strip()
    if any(character.isdigit() for character in piece):
        return "number"
    if not piece.strip(string.punctuation + "–—“”’"):
        return "punctuation"
    if piece.casefold() in STOPWORDS:
        return "function word"
    return "capitalised" if float(heuristics.capitalised(passage)[t]) else "other word"


def by_rule(shop: Workshop, rule: Rule, facts: Facts) -> list[Tensor]:
    """Return what a rule gives the tokens of each passage."""
    passages = facts.passages
    if rule == "oracle":
        return [heuristics.oracle(passage, [span]) for passage, span in zip(passages, facts.targets)]
    readings = read(shop.base.model, passages, ())
    if rule == "rho1":
        return _rho1(shop, passages, readings)
    return [RULES[rule](passage, reading) for passage, reading in zip(passages, readings)]


def _rho1(shop: Workshop, passages: Sequence[Passage], readings: Sequence[Reading]) -> list[Tensor]:
    """RHO-1 against a reference: the base after an epoch on texts of facts that it knows."""
    found = []
    for passage, reading, nll in zip(passages, readings, _reference_nll(shop, [one.encoded for one in passages])):
        placed = torch.zeros(len(passage.spans))
        placed[list(passage.scored)] = nll
        found.append(heuristics.rho1(reading.nll, placed, scored_mask([passage])[0]))
    return found


def _reference_nll(shop: Workshop, texts: Sequence[Encoded]) -> list[Tensor]:
    pool = shop.facts("replay_pool_cpu").passages
    known = [passage.encoded for passage in pool]
    schedule = dataclasses.replace(shop.schedule, epochs=1)
    with adapted(shop.base, [*known, *texts], shop.work / "prefix", rank=schedule.rank, seed=THETA_SEED) as model:
        even = [heuristics.uniform(passage) for passage in pool]
        for _ in epochs(model, known, even, schedule, seed=THETA_SEED):
            pass
        return [torch.from_numpy(one.token_nll) for one in likelihoods(model, texts)]
