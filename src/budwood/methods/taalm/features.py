"""Numbers that a head reads beside hidden states: what a token looks like, and what the base thinks of it.

All are within a few units of 0, so that no statistics of a training set have to be kept. "rarity" grows with the
token's id: tokenizers number their tokens about in the order of how common they are.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter

import torch
from jaxtyping import Float
from torch import Tensor

from budwood.data.documents.sentences import sentences
from budwood.data.offsets import NOWHERE
from budwood.methods.taalm.passages import Passage
from budwood.methods.taalm.reading import Reading

FEATURES = (
    "nll",
    "p",
    "entropy",
    "rank",
    "capitalised",
    "begins_word",
    "stopword",
    "digit",
    "punctuation",
    "position",
    "sentence_start",
    "characters",
    "word_seen",
    "word_repeated",
    "rarity",
)

STOPWORDS = frozenset(
    "a an the this that these those and or but nor so yet if as at by for from in into of off on onto out over per to "
    "up with without about after before between during through under until upon while i you he she it we they me him "
    "her us them my your his its our their who whom whose which what where when why how there here not no is am are "
    "was were be been being has have had do does did will would shall should can could may might must also than then "
    "too very just such some any all both each every other another more most many much few own same only".split()
)
_WORD = re.compile(r"\w+(?:['’]\w+)*")


def surface(passage: Passage, reading: Reading) -> Float[Tensor, "T features"]:
    """Return the features of each token, in the order of `FEATURES`; zeros where no character stands for it."""
    words = _words(passage.text)
    counts = Counter(word for _, word in set(words.values()))
    starts = {start for start, _ in sentences(passage.text)}
    seen: Counter[str] = Counter()
    last: int | None = None
    rows = []
    for t, span in enumerate(passage.spans):
        if span == NOWHERE:
            rows.append([0.0] * len(FEATURES))
            continue
        piece = passage.text[slice(*span)]
        first = span[0] + len(piece) - len(piece.lstrip())
        place = min(first, span[1] - 1)  # white space alone is no part of the word after it
        begins, word = words.get(place, (place, ""))
        if word and begins != last:
            seen[word] += 1
            last = begins
        nll = float(reading.nll[t])
        rows.append(
            [
                nll / 5,
                math.exp(-nll) if t else 0.0,
                float(reading.entropy[t]) / 5,
                math.log1p(float(reading.rank[t])) / 5,
                float(passage.text[begins : begins + 1].isupper()),
                float(begins == first),
                float(word in STOPWORDS),
                float(any(character.isdigit() for character in piece)),
                float(not word and any(character in string.punctuation for character in piece)),
                t / len(passage.spans),
                float(begins in starts),
                len(piece.strip()) / 5,
                float(seen[word] > 1) if word else 0.0,
                float(counts[word] > 1) if word else 0.0,
                math.log1p(passage.encoded.input_ids[t]) / 10,
            ]
        )
    return torch.tensor(rows)


def _words(text: str) -> dict[int, tuple[int, str]]:
    """Return for each character of a word the start of the word, and the word in lower case."""
    found = [(match.span(), match.group().casefold()) for match in _WORD.finditer(text)]
    return {place: (start, word) for (start, stop), word in found for place in range(start, stop)}
