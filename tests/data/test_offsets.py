import random

import pytest

from budwood.data.offsets import NOWHERE, LocatedIds, OffsetTokens
from budwood.data.tokens import TokenIds
from budwood.errors import NotSupportedError
from tests import tiny
from tests.data.samples import MERGES, SlowTokenizer, byte_tokenizer, space_tokenizer, text

TOKENIZERS = {
    "bytes": lambda: byte_tokenizer(),
    "bytes with a beginning": lambda: byte_tokenizer(bos=True, merges=MERGES),
    "spaces": lambda: space_tokenizer(),
    "tiny": lambda: tiny.tokenizer(),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_those_of_the_renderers_tokens_and_every_character_is_in_a_token(name):
    tokenizer = TOKENIZERS[name]()
    tokens, rng = OffsetTokens(tokenizer), random.Random(0)
    texts = [text(rng) for _ in range(60)]
    for one, located, ids in zip(texts, tokens.encode(texts), TokenIds(tokenizer).encode(texts), strict=True):
        assert located.ids == ids
        assert len(located.spans) == len(ids)
        covered = {i for start, stop in located.spans for i in range(start, stop)}
        assert covered >= {i for i, character in enumerate(one) if not character.isspace()}
        assert max(stop for _, stop in located.spans) <= len(one)


def test_the_beginning_stands_once_and_nowhere_in_the_text():
    tokens = OffsetTokens(byte_tokenizer(bos=True))
    plain, written = tokens.encode(["ab", "<s>ab"])
    assert plain.ids == written.ids
    assert plain.spans == [NOWHERE, (0, 1), (1, 2)]
    assert written.spans == [(0, 3), (3, 4), (4, 5)]


def test_overlapping_finds_each_token_that_shares_a_character():
    located = LocatedIds([0, 1, 2, 3], [NOWHERE, (0, 3), (3, 5), (5, 9)])
    assert located.overlapping((2, 4)) == [1, 2]
    assert located.overlapping((3, 5)) == [2]
    assert located.overlapping((0, 1)) == [1]
    assert located.overlapping((4, 4)) == []


def test_no_texts_give_nothing():
    assert OffsetTokens(tiny.tokenizer()).encode([]) == []


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(NotSupportedError, match="fast tokenizer"):
        OffsetTokens(SlowTokenizer())
