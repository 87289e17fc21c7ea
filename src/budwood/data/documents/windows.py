"""Documents to rows: windows of whole sentences, at most so many tokens long, each token with its characters.

A sentence that is longer than a window is cut at the space nearest to its middle, again and again until it fits: no
text is lost. A window may begin with the title and the heading above it, as context that is not learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from budwood.data.documents.document import BREAK, Document
from budwood.data.documents.sentences import stretches
from budwood.data.offsets import NOWHERE, LocatedIds, OffsetTokens, Span
from budwood.data.render import UNTRAINED, Encoded
from budwood.data.report import Progress
from budwood.errors import ConfigError

SHORTEST = 16  # tokens; below, a single character and the beginning of a text may not fit
CONTEXT_SHARE = 4  # a context may take 1 of so many tokens
TOLD = 512  # sentences or windows between two calls of a progress
CHARACTERS = 16  # more than a token of any text has; a sentence is cut to so many a token before tokens are counted


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a document, ready to be learned.

    Attributes:
        document: what it is a part of.
        span: its characters in the document's text.
        context: what is written before it and not learned; "" for nothing.
        encoded: its ids, with a label and the weight 1 at each token of the span; `row_index` counts windows.
        spans: for each token its characters in the document's text; (0, 0) for tokens of the context.
    """

    document: Document
    span: Span
    context: str
    encoded: Encoded
    spans: tuple[Span, ...]

    @property
    def text(self) -> str:
        """What is learned."""
        return self.document.text[slice(*self.span)]

    def weighted(self, weights: Sequence[float]) -> Window:
        """Return the window with other loss weights, one a token; those of the context are set to 0."""
        assert len(weights) == len(self.encoded.input_ids), "one weight a token"
        labels = self.encoded.labels
        kept = [0.0 if label == UNTRAINED else float(weight) for label, weight in zip(labels, weights)]
        return replace(self, encoded=replace(self.encoded, loss_weights=kept))


def make_windows(
    documents: Sequence[Document],
    tokens: OffsetTokens,
    *,
    max_tokens: int,
    with_heading: bool = True,
    progress: Progress | None = None,
) -> list[Window]:
    """Divide documents into windows, in order. No two share a character, and all but white space is in one.

    Args:
        documents: what to divide.
        tokens: the tokenizer with offsets.
        max_tokens: the longest window, its context and the tokenizer's beginning included.
        with_heading: whether to write title and heading in front, where they take at most a quarter of the tokens.
        progress: called with characters, now and then where there are many.

    Raises:
        ConfigError: `max_tokens` is below 16.
    """
    if max_tokens < SHORTEST:
        raise ConfigError(f"windows of {max_tokens} tokens", wanted=f"{SHORTEST} tokens or more", action="raise it")
    found: list[Window] = []
    done, total = 0, sum(len(document.text) for document in documents)
    for document in documents:
        pieces = _Pieces(document, tokens, max_tokens, progress)
        first = 0
        while first < len(pieces.spans):
            start = pieces.spans[first][0]
            context = pieces.context(start) if with_heading else ""
            stop, context, ids = pieces.window(first, context)
            span = (start, pieces.spans[stop - 1][1])
            found.append(_window(document, span, context, ids, len(found)))
            first = stop
            if progress is not None and len(found) % TOLD == 0:
                progress("text divided, characters", done + span[1], total)
        done += len(document.text)
    return found


class _Pieces:
    """The sentences of a document, none longer than a window, with their counts of tokens."""

    def __init__(self, document: Document, tokens: OffsetTokens, max_tokens: int, progress: Progress | None) -> None:
        self._document, self._tokens, self._max = document, tokens, max_tokens
        whole = stretches(document.text, CHARACTERS * max_tokens)
        sizes: list[int] = []
        for start in range(0, len(whole), TOLD):
            sizes += self._counts(whole[start : start + TOLD])
            if progress is not None and len(sizes) < len(whole):
                progress("tokens counted, sentences", len(sizes), len(whole))
        counted = zip(whole, sizes, strict=True)
        pairs = [pair for span, count in counted for pair in self._cut(span, count)]
        self.spans = [span for span, _ in pairs]
        self._sizes = [count for _, count in pairs]
        self._headings = {heading.span for heading in document.headings}
        self._contexts: dict[str, int] = {}

    def context(self, start: int) -> str:
        """Return title and heading above a place, as far as they take a quarter of the tokens."""
        document = self._document
        parts = list(dict.fromkeys(part for part in (document.title, document.heading_at(start)) if part))
        while parts:
            context = "\n".join(parts) + BREAK
            follows = document.text.startswith(parts[-1], start)  # the window itself begins with it
            if not follows and self._context_size(context) <= self._max // CONTEXT_SHARE:
                return context
            parts.pop() if follows else parts.pop(0)
        return ""

    def _context_size(self, context: str) -> int:
        if context not in self._contexts:
            self._contexts[context] = self._tokens.counts([context])[0]
        return self._contexts[context]

    def window(self, first: int, context: str) -> tuple[int, str, LocatedIds]:
        """Return the end of the longest window that begins with piece `first`, its context, and its ids."""
        room = self._max - self._context_size(context) if context else self._max
        stop = first + 1
        while stop < len(self.spans) and sum(self._sizes[first : stop + 1]) <= room:
            stop += 1
        while stop > first + 1 and self.spans[stop - 1] in self._headings:
            stop -= 1  # a heading belongs to what follows it
        while True:
            text = self._document.text[self.spans[first][0] : self.spans[stop - 1][1]]
            ids = self._encode(context + text)
            if len(ids.ids) <= self._max:
                return stop, context, ids
            if stop > first + 1:
                stop -= 1
            else:
                context = ""

    def _cut(self, span: Span, count: int) -> list[tuple[Span, int]]:
        if count <= self._max:
            return [(span, count)]
        text = self._document.text[slice(*span)]
        middle = len(text) // 2
        spaces = [i for i, character in enumerate(text) if character.isspace()]
        at = min(spaces, key=lambda i: abs(i - middle)) if spaces else middle
        halves = [(span[0], span[0] + at), (span[0] + at + bool(spaces), span[1])]
        return [pair for half, size in zip(halves, self._counts(halves)) for pair in self._cut(half, size)]

    def _counts(self, spans: Sequence[Span]) -> list[int]:
        return self._tokens.counts([self._document.text[slice(*span)] for span in spans])

    def _encode(self, text: str) -> LocatedIds:
        return self._tokens.encode([text])[0]


def _window(document: Document, span: Span, context: str, ids: LocatedIds, index: int) -> Window:
    shift = span[0] - len(context)
    spans = tuple(
        (max(first, len(context)) + shift, last + shift) if last > len(context) else NOWHERE
        for first, last in ids.spans
    )
    inside = [one != NOWHERE for one in spans]
    labels = [token if learned else UNTRAINED for token, learned in zip(ids.ids, inside)]
    encoded = Encoded(ids.ids, labels, [float(learned) for learned in inside], document.origin, index)
    return Window(document, span, context, encoded, spans)
