"""Blanks made from the documents themselves: does the model go on as the document does?

That is memorisation of the document's own words and must be called so. Whether a fact can be used is asked in other
words, by rows of facts or by probes of the user's.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from budwood.data.documents.document import Document
from budwood.data.documents.sentences import stretches
from budwood.data.offsets import Span
from budwood.data.probes import Probe

Kind = Literal["name", "number", "word"]
FEWEST_WORDS = 4  # before a blank
LONGEST = 1000  # characters; what goes on longer without a full stop is no sentence
_NUMBER = re.compile(r"(?<![\w.,])\d+(?:[.,:/-]\d+)*(?!\w)")
_NAME = re.compile(r"\b[^\W\d_a-zß-ÿ][\w’'-]+(?: (?:(?:of|the|de|da|di|van|von|der|la) ){0,2}[^\W\d_a-zß-ÿ][\w’'-]+)*")
_MARKER = re.compile(
    r"(?:\W|\d{1,3}[.)]|[a-zA-Z][.)])*\s*"
)  # of an item of a list; the word behind it begins the sentence
_WORD = re.compile(r"\b[^\W\d_]{7,}\b")


@dataclass(frozen=True, slots=True)
class Cloze:
    """A blank in a document.

    Attributes:
        document: where it stands.
        span: the characters of the blank in the document's text.
        kind: "name" (capitalised words), "number", or "word" (one that the documents use once).
        probe: the text up to the end of the blank, which is the target.
    """

    document: Document
    span: Span
    kind: Kind
    probe: Probe


def make_clozes(documents: Sequence[Document], *, most: int, seed: int = 0) -> list[Cloze]:
    """Make at most one blank a sentence, and at most `most` in all, spread over the documents.

    A blank stands after at least four words, and what it asks for does not stand in them. Names come before numbers,
    numbers before rare words. The choice depends on the seed and the documents only.
    """
    counts = Counter(word.lower() for document in documents for word in _WORD.findall(document.text))
    queues = deque(deque(_shuffled(list(_blanks(document, counts)), seed)) for document in documents)
    chosen: list[Cloze] = []
    while queues and len(chosen) < most:
        queue = queues.popleft()
        if queue:
            chosen.append(queue.popleft())
            queues.append(queue)
    return chosen


def _shuffled(blanks: list[Cloze], seed: int) -> list[Cloze]:
    return sorted(blanks, key=lambda one: hashlib.sha256(f"{seed}:{one.span}:{one.probe.text}".encode()).digest())


def _blanks(document: Document, counts: Counter[str]) -> Iterator[Cloze]:
    headings = {heading.span for heading in document.headings}
    before: Span | None = None
    for span in stretches(document.text, LONGEST):
        if span in headings:
            before = None
            continue
        found = _blank(document, span, before, counts)
        if found is not None:
            yield found
        before = span


def _blank(document: Document, span: Span, before: Span | None, counts: Counter[str]) -> Cloze | None:
    """Return the last blank of the best kind in a sentence whose prompt is long enough and does not give it away."""
    text = document.text
    for kind, (first, last) in _candidates(text[slice(*span)], counts):
        place = (span[0] + first, span[0] + last)
        start = span[0]
        near = before is not None and "\n\n" not in text[before[1] : span[0]]
        if len(text[start : place[0]].split()) < FEWEST_WORDS and before is not None and near:
            start = before[0]
        prompt, answer = text[start : place[0]], text[slice(*place)]
        if len(prompt.split()) >= FEWEST_WORDS and answer.casefold() not in prompt.casefold():
            probe = Probe(text[start : place[1]], (place[0] - start, place[1] - start), document.origin)
            return Cloze(document, place, kind, probe)
    return None


def _candidates(sentence: str, counts: Counter[str]) -> Iterator[tuple[Kind, Span]]:
    """Yield what could be asked for: the best kind first, the last of a kind first; never a sentence's first word."""
    first = len(_MARKER.match(sentence)[0])  # type: ignore[index]  # it matches the empty text, too
    names = [match.span() for match in _NAME.finditer(sentence) if match.start() > first]
    numbers = [match.span() for match in _NUMBER.finditer(sentence) if match.start() >= first]
    words = [match.span() for match in _WORD.finditer(sentence) if counts[match[0].lower()] == 1]
    kinds: tuple[tuple[Kind, list[Span]], ...] = (("name", names), ("number", numbers), ("word", words))
    for kind, spans in kinds:
        yield from ((kind, span) for span in reversed(spans))
