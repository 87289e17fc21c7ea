"""What a scorer reads: a text, its tokens under the base, and the characters of each.

A score stands at the token whose loss it weights, not at the position that predicts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from budwood.data.documents.windows import Window
from budwood.data.offsets import NOWHERE, OffsetTokens, Span
from budwood.data.problems import Origin
from budwood.data.render import UNTRAINED, Encoded


@dataclass(frozen=True, slots=True)
class Passage:
    """A text and its tokens.

    Attributes:
        text: what is learned.
        encoded: T tokens, with labels where a loss may fall.
        spans: for each token its characters in `text`; (0, 0) where it stands for none of them.
    """

    text: str
    encoded: Encoded
    spans: tuple[Span, ...]

    @property
    def scored(self) -> tuple[int, ...]:
        """The tokens a loss may fall on: they have a label and something before them."""
        return tuple(t for t, label in enumerate(self.encoded.labels) if t and label != UNTRAINED)


def from_window(window: Window) -> Passage:
    """Return the passage of a window; its context belongs to the tokens, not to the text."""
    start = window.span[0]
    spans = tuple(NOWHERE if span == NOWHERE else (span[0] - start, span[1] - start) for span in window.spans)
    return Passage(window.text, window.encoded, spans)


def from_texts(texts: Sequence[str], origins: Sequence[Origin], tokens: OffsetTokens) -> list[Passage]:
    """Return passages of whole texts, in which every token but the tokenizer's beginning has a label."""
    found = []
    for index, (text, origin, located) in enumerate(zip(texts, origins, tokens.encode(texts), strict=True)):
        inside = [span != NOWHERE for span in located.spans]
        labels = [token if learned else UNTRAINED for token, learned in zip(located.ids, inside)]
        encoded = Encoded(located.ids, labels, [float(learned) for learned in inside], origin, index)
        found.append(Passage(text, encoded, tuple(located.spans)))
    return found
