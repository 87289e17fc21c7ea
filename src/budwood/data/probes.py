"""A probe: a text with one part of it, the target, that a model is asked for; and its ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from budwood.data.offsets import OffsetTokens, Span
from budwood.data.problems import LocatedError, Origin
from budwood.data.render import UNTRAINED, Encoded


@dataclass(frozen=True, slots=True)
class Probe:
    """A text whose `target` characters are to be predicted from what stands before them.

    Attributes:
        text: the whole text; what follows the target only keeps its tokens as they would be in a sentence.
        target: the characters asked for.
        origin: where the probe came from.
    """

    text: str
    target: Span
    origin: Origin

    @property
    def prompt(self) -> str:
        """What stands before the target."""
        return self.text[: self.target[0]]

    @property
    def answer(self) -> str:
        """The target's own text."""
        return self.text[self.target[0] : self.target[1]]


def last_mention(text: str, phrase: str) -> Span | None:
    """Return where `phrase` stands last in `text` as whole words, else in other case, else inside a word, else None.

    The last mention is the one that counts in TAALM (Seo et al., 2024): a probe ends with its object.
    """
    if not phrase:
        return None
    left, right = (r"\b" if edge.isalnum() else "" for edge in (phrase[0], phrase[-1]))
    whole = f"{left}{re.escape(phrase)}{right}"
    for flags in (re.NOFLAG, re.IGNORECASE):
        found = [match.span() for match in re.finditer(whole, text, flags)]
        if found:
            return found[-1]
    start = text.rfind(phrase)
    return (start, start + len(phrase)) if start >= 0 else None


def encode_probes(probes: Sequence[Probe], tokens: OffsetTokens) -> list[Encoded]:
    """Return the ids of probes, with labels at the tokens that hold a character of the target.

    The index of a probe is the `row_index` of its sequence.

    Raises:
        DataError: nothing stands before a target, so there is nothing to predict it from.
    """
    located = tokens.encode([probe.text for probe in probes])
    found = []
    for index, (probe, one) in enumerate(zip(probes, located, strict=True)):
        targets = set(one.overlapping(probe.target))
        if not targets or 0 in targets:
            raise LocatedError(
                f"nothing stands before {probe.answer!r}, so a model has nothing to predict it from",
                action="write a question, or the beginning of a sentence, in front of it",
                origin=probe.origin,
            )
        labels = [token if i in targets else UNTRAINED for i, token in enumerate(one.ids)]
        weights = [float(i in targets) for i in range(len(one.ids))]
        found.append(Encoded(one.ids, labels, weights, probe.origin, index))
    return found
