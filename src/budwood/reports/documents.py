"""What a run from documents learned, forgot and looked at, for its page: strips of words, lists of facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEVELS = 9  # shades of a word, beside none
SHOWN_FACTS, SHOWN_DOCUMENTS, SHOWN_CHARACTERS = 20, 50, 20_000


@dataclass(frozen=True)
class Strip:
    """A document as pieces of text with a shade each: 0 is what got no more than uniform weights give, 9 the most."""

    title: str
    pieces: tuple[tuple[str, int], ...]
    cut: bool


@dataclass(frozen=True)
class Learned:
    """What became of the probes of a run.

    Attributes:
        figures: a row for each kind of probes: what it is, how many, before and after.
        learned, missed, forgotten: probes as `recall.json` has them, those first that moved most in nats a token.
        paper: the epoch of the paper's rule with its figures.
        best_epoch, kept_enough, keep_wanted: how the published epoch was chosen.
    """

    figures: tuple[dict[str, Any], ...]
    learned: tuple[Mapping[str, Any], ...]
    missed: tuple[Mapping[str, Any], ...]
    forgotten: tuple[Mapping[str, Any], ...]
    paper: Mapping[str, Any]
    best_epoch: float
    kept_enough: bool
    keep_wanted: float


KINDS = {
    "other_words": "learned, in other words (your questions)",
    "own_words": "memorised, in the documents' own words",
    "keep": "kept, of what the base knew",
    "earlier": "kept, of what the earlier run had learned",
}

FORGOTTEN = (
    "Known is an answer of which each token is the most likely one, given the right ones before it. Forgotten is one"
    " that the base knows and the adapted model does not: one token that lost its first place is enough, so the nats"
    " a token may fall all the same, where the other tokens became likelier."
)


def strips(weights: Mapping[str, Any]) -> list[Strip]:
    """Return the first documents of `documents/weights.json` as strips, all on one scale."""
    documents = weights.get("documents", [])[:SHOWN_DOCUMENTS]
    largest = max((weight for one in documents for _, _, weight in one["weights"]), default=1.0)
    return [_strip(one, largest) for one in documents]


def _strip(document: Mapping[str, Any], largest: float) -> Strip:
    text = str(document["text"])[:SHOWN_CHARACTERS]
    shades = [0] * len(text)
    for start, stop, weight in document["weights"]:
        shades[start:stop] = [shade(weight, largest)] * len(shades[start:stop])
    return Strip(
        str(document.get("title") or document["file"]), _merged(text, shades), len(text) < len(document["text"])
    )


def shade(weight: float, largest: float) -> int:
    """Return how dark a word with this weight is: by the logarithm of its ratio to a uniform weight, which is 1."""
    if weight <= 1 or largest <= 1:
        return 0
    return max(1, min(LEVELS, math.ceil(LEVELS * math.log(weight) / math.log(largest))))


def _merged(text: str, shades: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Return the text in pieces of one shade."""
    pieces: list[tuple[str, int]] = []
    for character, level in zip(text, shades, strict=True):
        if pieces and pieces[-1][1] == level:
            pieces[-1] = (pieces[-1][0] + character, level)
        else:
            pieces.append((character, level))
    return tuple(pieces)


def learned(recall: Mapping[str, Any]) -> Learned | None:
    """Return what `documents/recall.json` says; None where there is no such file."""
    if not recall:
        return None
    asked = recall["probes"].get(recall["learned_by"], [])
    kept = [one for kind in ("keep", "earlier") for one in recall["probes"].get(kind, [])]
    return Learned(
        figures=tuple({"kind": words, **_figures(recall[name])} for name, words in KINDS.items() if name in recall),
        learned=_first(one for one in asked if one["after"] == 1 > one["before"]),
        missed=_first(one for one in asked if one["after"] < 1),
        forgotten=_first(one for one in kept if one["after"] < 1),
        paper=recall["paper"],
        best_epoch=recall["best_epoch"],
        kept_enough=recall["kept_enough"],
        keep_wanted=recall["keep_wanted"],
    )


def _figures(kind: Mapping[str, Any]) -> dict[str, Any]:
    before, after = kind["before"], kind["after"]
    return {"probes": after["probes"], "before": before, "after": after}


def _first(probes: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the probes that moved most, and so few that they can be read."""
    return tuple(sorted(probes, key=lambda one: -abs(one["nll_before"] - one["nll_after"])))[:SHOWN_FACTS]
