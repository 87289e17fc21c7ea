"""Text to ids together with the characters that each id stands for, so that what is known of characters (where an
answer stands, how much a word counts) can be carried to tokens and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from budwood.data.tokens import TokenIds, begins_with
from budwood.errors import NotSupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]  # characters, from the first to before the second
NOWHERE: Span = (0, 0)  # the span of a token that no character stands for


@dataclass(frozen=True, slots=True)
class LocatedIds:
    """The ids of a text, and the characters of each: one span an id, `NOWHERE` for what the tokenizer put in front."""

    ids: list[int]
    spans: list[Span]

    def overlapping(self, span: Span) -> list[int]:
        """Return the indices of the tokens that share a character with `span`."""
        return [i for i, (start, stop) in enumerate(self.spans) if max(start, span[0]) < min(stop, span[1])]


class OffsetTokens:
    """Ids and spans under one tokenizer; the ids are those that `TokenIds` gives.

    Raises:
        NotSupportedError: the tokenizer is a slow one, which knows no offsets.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise NotSupportedError(
                f"{type(tokenizer).__name__} does not say which characters a token stands for",
                wanted="a fast tokenizer (a folder with tokenizer.json)",
                action="save the tokenizer as a fast one, or choose another base",
            )
        self.tokenizer = tokenizer
        self._ids = TokenIds(tokenizer)
        self._beginning = self._ids.beginning

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return how many ids each text has: as `encode`, without the spans, which take longer than the ids."""
        return [len(ids) for ids in self._ids.encode(texts)]

    def encode(self, texts: Sequence[str]) -> list[LocatedIds]:
        """Return ids and spans of whole texts."""
        if not texts:
            return []
        found = self.tokenizer(
            list(texts),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        pairs = zip(found["input_ids"], found["offset_mapping"], strict=True)
        return [self._begun(ids, [(int(start), int(stop)) for start, stop in spans]) for ids, spans in pairs]

    def _begun(self, ids: list[int], spans: list[Span]) -> LocatedIds:
        start = self._beginning
        if begins_with(ids, start):
            return LocatedIds(ids, spans)
        return LocatedIds(start + ids, [NOWHERE] * len(start) + spans)
