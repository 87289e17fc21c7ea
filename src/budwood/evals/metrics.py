"""Two metrics of a generated text against its references: exact match and ROUGE-L. Both lie between 0 and 1.

A row may list several right answers; its score is that of the best one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

Normalise = Callable[[str], str]


def stripped(text: str) -> str:
    """Return `text` without white space at its ends: the normal form that reports use."""
    return text.strip()


def verbatim(text: str) -> str:
    """Return `text` as it is: the strict form, under which a trailing space is a mistake."""
    return text


def exact_match(text: str, references: Sequence[str], normalise: Normalise = stripped) -> float:
    """Return 1.0 if `text` equals one of `references`, else 0.0. Case and punctuation count.

    Args:
        text: what the model wrote.
        references: the right answers, at least one.
        normalise: applied to both sides first; `stripped` or the strict `verbatim`.
    """
    return float(normalise(text) in {normalise(reference) for reference in references})


def rouge_l(text: str, references: Sequence[str]) -> float:
    """Return the ROUGE-L F1 (longest common subsequence of words) of `text` with its best reference.

    Words are lower-cased runs of letters and digits, without stemming. For ASCII text this is the tokenisation of
    the `rouge-score` package; it also keeps the letters of other alphabets, which that package drops. Writing without
    spaces between words counts as one word a sentence.

    Args:
        text: what the model wrote.
        references: the right answers, at least one.
    """
    score = _scorer().score_multi(list(references), text)["rougeL"]
    return float(score.fmeasure)


class _Words:
    """The tokenizer that `RougeScorer` calls."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"[^\W_]+", text.lower())


@functools.cache
def _scorer() -> RougeScorer:
    from rouge_score.rouge_scorer import RougeScorer  # loads nltk: half a second that only a report pays for

    return RougeScorer(["rougeL"], tokenizer=_Words())
