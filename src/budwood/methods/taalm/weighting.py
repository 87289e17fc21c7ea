"""Which weights the tokens of documents get: a scorer's, where one is there for this base, or those of a rule.

A scorer is looked for in this order: the prior that the user names; one that ships for these very weights; one that
ships for any base (an encoder reads the text, not the base's states). A rule is the user's explicit choice.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from budwood import storage
from budwood.data.documents.sentences import sentences
from budwood.data.offsets import Span
from budwood.data.render import UNTRAINED
from budwood.errors import BaseMismatchError, ModelError, NotSupportedError
from budwood.methods.taalm import heuristics
from budwood.methods.taalm.encoder import encoder_folder
from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.methods.taalm.passages import Passage
from budwood.methods.taalm.prior import FACTS, WEIGHTS, load_prior, read_facts
from budwood.methods.taalm.reading import Reading, read
from budwood.methods.taalm.row_cache import RowCache
from budwood.methods.taalm.scorer import scored_mask
from budwood.methods.taalm.settings import EncoderSettings, WeightSettings
from budwood.methods.taalm.weights import cached_scores, token_weights
from budwood.models import Base, Source, fingerprint_file

SHIPPED = "scorers"  # folder of priors among the package's resources
Rule = Callable[[Passage, Reading], Float[Tensor, " T"]]


def _hardest(passage: Passage, reading: Reading) -> Float[Tensor, " T"]:
    return heuristics.token_dropping(reading.nll, scored_mask([passage])[0])


RULES: Mapping[str, Rule] = {
    "uniform": lambda passage, reading: heuristics.uniform(passage),
    "entropy": lambda passage, reading: heuristics.entropy(reading.entropy),
    "one_minus_p": lambda passage, reading: heuristics.one_minus_p(reading.nll),
    "focal": lambda passage, reading: heuristics.focal(reading.nll),
    "capitalised": lambda passage, reading: heuristics.capitalised(passage),
    "token_dropping": _hardest,
}


@dataclass(frozen=True)
class Weights:
    """Loss weights of passages, (T,) each, and what gave them, in words."""

    values: list[Float[Tensor, " T"]]
    origin: str


def find_prior(settings: DocumentSettings, source: Source) -> Path | None:
    """Return the folder of the scorer to use; None where a rule was chosen.

    Raises:
        AdapterError: the prior that was named is missing or damaged.
        BaseMismatchError: it was made on another base.
        ModelError: its encoder is not installed.
        NotSupportedError: no scorer that ships fits this base.
    """
    if settings.weights != "taalm":
        return None
    if settings.prior is not None:
        facts = read_facts(settings.prior)
        if facts.body.kind != "encoder" and facts.fingerprint != source.fingerprint:
            raise BaseMismatchError(
                f"the prior {settings.prior} was made on {facts.base} ({facts.fingerprint[:12]}), this base is"
                f" {source.fingerprint[:12]}",
                wanted="the same weights: this scorer reads the base's own states",
                action=_prepare(source),
            )
        return _usable(settings.prior)
    shipped = [(folder, read_facts(folder)) for folder in _shipped()]
    own = [folder for folder, facts in shipped if facts.fingerprint == source.fingerprint]
    any_base = [folder for folder, facts in shipped if facts.body.kind == "encoder"]
    if found := [*sorted(own, key=lambda folder: folder in any_base), *any_base]:
        return _usable(found[0])
    raise NotSupportedError(
        f"no scorer of tokens ships for {source.reference}",
        wanted="a scorer made for this base, or a rule in its place",
        action=f"{_prepare(source)}; or choose --weights uniform",
    )


def _usable(prior: Path) -> Path:
    """Return the folder of a prior whose encoder, if it has one, is installed."""
    body = read_facts(prior).body
    if isinstance(body, EncoderSettings):
        try:
            encoder_folder(body.encoder)
        except ModelError as error:
            action = f"{error.action}; or choose --weights uniform"
            raise ModelError(error.got, wanted=error.wanted, action=action) from None
    return prior


def _prepare(source: Source) -> str:
    return f"make one with `budwood prepare {source.reference} taalm --corpus FACTS -o PRIOR`, and give --prior PRIOR"


def _shipped() -> list[Path]:
    """Return the folders of the priors that ship; the package is always a folder on disk."""
    place = Path(str(importlib.resources.files("budwood") / "resources" / SHIPPED))
    return sorted(path.parent for path in place.glob(f"*/{FACTS}"))


def weigh(base: Base, passages: Sequence[Passage], settings: DocumentSettings, prior: Path | None) -> Weights:
    """Return the weights of passages: 0 outside their scored tokens.

    Args:
        base: bare, before an adapter is attached.
        prior: what `find_prior` returned.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    if prior is None:
        return Weights(_by_rule(base.model, passages, RULES[settings.weights]), f"rule: {settings.weights}")
    scorer, facts = load_prior(prior, base.model, fingerprint=base.source.fingerprint, force=True)
    name = f"{base.source.fingerprint} {base.model.dtype} {fingerprint_file(prior / WEIGHTS)}"
    scores = cached_scores(scorer, passages, RowCache(storage.cache_dir() / "token_scores", name))
    shape = facts.weights
    if settings.floor is not None:
        shape = shape.model_copy(update={"floor": settings.floor})
    values = [by_sentence(passage, row, shape) for passage, row in zip(passages, scores, strict=True)]
    return Weights(values, f"scorer: {facts.body.kind}, {prior.name}")


def by_sentence(passage: Passage, scores: Float[Tensor, " T"], shape: WeightSettings) -> Float[Tensor, " T"]:
    """Return the weights of a passage in which each sentence stands for itself, with mean weight 1.

    A scorer learns from texts with one fact each; over a whole window of several, the largest score would take almost
    all of the weight.
    """
    parts = [token_weights(_only(passage, span), scores, shape) for span in sentences(passage.text)]
    return torch.stack(parts).sum(dim=0)


def _only(passage: Passage, span: Span) -> Passage:
    """Return a passage in which only the tokens whose last character lies in a span are scored."""
    inside = [span[0] < stop <= span[1] for _, stop in passage.spans]
    labels = [label if kept else UNTRAINED for label, kept in zip(passage.encoded.labels, inside, strict=True)]
    return replace(passage, encoded=replace(passage.encoded, labels=labels))


def _by_rule(model: nn.Module, passages: Sequence[Passage], rule: Rule) -> list[Float[Tensor, " T"]]:
    found = []
    for passage, reading in zip(passages, read(model, passages, layers=()), strict=True):
        inside = torch.where(scored_mask([passage])[0], rule(passage, reading), 0)
        found.append(inside if bool(inside.any()) else heuristics.uniform(passage))
    return found
