"""Text to sentences by rules, for text of European languages and for CJK full stops.

A line is never joined with the next: readers have put together what width had broken. Where a full stop may belong to
an abbreviation, the next word decides. Two sentences taken for one do little harm; a sentence cut in two does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from budwood.data.offsets import Span

# What never ends a sentence, for a name or an example must follow; and what does not where a number follows.
_NEVER = frozenset(
    "mr mrs ms dr prof rev fr sr st mt ft gen col lt sgt capt cmdr maj hon pres gov sen rep messrs mme mlle dipl ing "
    "vs v viz ca cf approx e.g i.e z.b d.h u.a s.a al ed eds trans".split()
)
_BEFORE_NUMBER = frozenset(
    "no nos nr vol ch chap sec sect fig figs eq eqs art pp p para tel jan feb mar apr jun jul aug sep sept oct nov "
    "dec mon tue wed thu fri sat sun".split()
)
# What may end one: it does if the next word often begins a sentence.
_MAYBE = frozenset(
    "inc ltd co corp llc plc bros dept univ assn est etc usw jr a.m p.m b.c a.d u.s u.k u.n ph.d m.d".split()
)
_STARTERS = frozenset(
    "the a an this that these those it its he she they we i you his her their our my there here in on at by for from "
    "to of as if when while after before since until although though because but and or so yet however then thus "
    "today later now both each every all some many most no not what who where why how der die das ein eine er sie es "
    "le la les un une il elle el los las".split()
)
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？][」』”’）]*")
_NEXT = re.compile(r"\s*[\"'“‘«(\[¿¡]*")
_LETTERS = re.compile(r"\w*")
_OPENING = "([\"'“‘/"  # what a word may begin after, beside white space
_LIST_NUMBER = re.compile(r"\s*(?:\(?\w{1,3}|#+)[.)]")


def sentences(text: str) -> list[Span]:
    """Return the sentences of a text as spans of characters, in order, without the white space between them.

    Headings and items of lists are sentences of their own. Every character but white space is in just one span.
    """
    found: list[Span] = []
    start = 0
    for line in text.splitlines(keepends=True):
        found += [(start + first, start + last) for first, last in _in_line(line)]
        start += len(line)
    return found


def stretches(text: str, longest: int) -> list[Span]:
    """Return the sentences of a text; those of more than `longest` characters cut, at white space where possible."""
    return [part for span in sentences(text) for part in _parts(text, span, longest)]


def _parts(text: str, span: Span, longest: int) -> Iterator[Span]:
    first, last = span
    while last - first > longest:
        at = next((i for i in range(first + longest, first, -1) if text[i].isspace()), first + longest)
        yield _stripped(text, first, at)
        first, last = _stripped(text, at, last)
    yield first, last


def _in_line(line: str) -> list[Span]:
    cuts = [0, *(match.end() for match in _END.finditer(line) if _ends(line, match)), len(line)]
    spans = [_stripped(line, first, last) for first, last in itertools.pairwise(cuts)]
    return [span for span in spans if span[0] < span[1]]


def _stripped(line: str, first: int, last: int) -> Span:
    while first < last and line[first].isspace():
        first += 1
    while first < last and line[last - 1].isspace():
        last -= 1
    return first, last


def _ends(line: str, match: re.Match[str]) -> bool:
    """Whether a sentence ends with this punctuation."""
    if match[0][0] in "。！？":
        return True
    # By positions, never by copies of the rest: a line may be a book.
    after = _NEXT.match(line, match.end()).end()  # type: ignore[union-attr]  # it matches the empty text, too
    if after == len(line) or line[after].islower():
        return after == len(line)
    if match[0][0] != "." or match[0].startswith(".."):
        return True
    if _LIST_NUMBER.fullmatch(line, 0, match.start() + 1):
        return False
    following = _LETTERS.match(line, after)[0].lower()  # type: ignore[index]  # as above
    return _stop_ends(_word_before(line, match.start()), following, line[after].isdigit())


def _word_before(line: str, stop: int) -> str:
    start = stop
    while start > 0 and not (line[start - 1].isspace() or line[start - 1] in _OPENING):
        start -= 1
    return line[start:stop]


def _stop_ends(word: str, following: str, digit: bool) -> bool:
    """Whether a full stop after `word` ends a sentence rather than an abbreviation."""
    lowered = word.lower()
    if lowered in _NEVER or (digit and lowered in _BEFORE_NUMBER):
        return False
    initial = len(word) == 1 and word.isalpha() and word.isupper()
    if lowered in _MAYBE or initial or re.fullmatch(r"(?:\w\.)+\w", word):
        return following in _STARTERS
    return True
