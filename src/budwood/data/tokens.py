"""Text to ids, with what the tokenizer puts in front exactly once.

Texts arrive whole, special tokens written out, so the tokenizer's own additions are off and its beginning (mostly one
BOS) is put back here where the text has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE = "a"


class TokenIds:
    """The ids of texts under one tokenizer.

    Args:
        tokenizer: any tokenizer of transformers; offsets are not needed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.beginning = self._beginning()
        self._anchor = self._find_anchor()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of whole texts. A beginning that a text writes out itself is not doubled."""
        start = self.beginning
        return [ids if ids[: len(start)] == start else start + ids for ids in self._plain(texts)]

    def continuation(self, text: str) -> list[int]:
        """Return the ids of a text that goes on where another ended: without the beginning."""
        if not self._anchor:
            return self._plain([text])[0]
        return self._plain([self._anchor + text])[0][1:]

    def _plain(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        found: list[list[int]] = self._tokenizer(
            list(texts),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return found

    def _beginning(self) -> list[int]:
        """What the tokenizer puts before a text when asked to add its special tokens."""
        bare, full = self._plain([_PROBE])[0], list(self._tokenizer(_PROBE)["input_ids"])
        starts = [i for i in range(len(full)) if full[i : i + len(bare)] == bare]
        return full[: starts[0]] if starts else []

    def _find_anchor(self) -> str:
        """A special token to write before a continuation, for tokenizers that put a space before a text's start.

        "Paris" alone would be " Paris" there. After a special token some of them leave the text as it is.
        """
        anchor = self._tokenizer.eos_token
        if not anchor:
            return ""
        (plain,), (anchored,) = self._plain([_PROBE]), self._plain([anchor + _PROBE])
        tells = anchored[:1] == [self._tokenizer.eos_token_id] and anchored[1:] != plain
        return str(anchor) if tells else ""


def begins_with(ids: Sequence[int], start: Sequence[int]) -> bool:
    """Whether `ids` begins with all of `start`."""
    return ids[: len(start)] == start
