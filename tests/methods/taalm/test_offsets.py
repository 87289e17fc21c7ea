"""Scores carried over characters, against a loop, for texts that tokenizers treat in special ways (property 13)."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch.testing import assert_close
from transformers import PreTrainedTokenizerFast

from budwood.methods.taalm.offsets import carried, overlap_map
from tests.methods.taalm import cases

TEXTS = [
    "Ida Moor, a glazier from Telvik.",
    "  two  spaces, and a tab\there ",
    "naïve façade — “Ωmega” 東京 🙂🙃 ok",
    "x",
]


def words() -> PreTrainedTokenizerFast:
    """An encoder's tokenizer: lower case, whole words, most of them unknown."""
    known = {word: i for i, word in enumerate(["[UNK]", "[PAD]", "a", "from", "two", "and", ",", "."])}
    core = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", pad_token="[PAD]")


@pytest.mark.parametrize("text", TEXTS)
def test_each_token_gets_the_largest_score_it_touches(text):
    (passage,) = cases.passages([text])
    spans = words()(text, return_offsets_mapping=True)["offset_mapping"]
    scores = torch.randn(len(spans), generator=torch.Generator().manual_seed(0))
    found = carried(scores, overlap_map(passage.spans, spans))
    assert len(found) == len(passage.spans)
    for (start, stop), score in zip(passage.spans, found):
        touching = [
            float(s) for s, (a, b) in zip(scores, spans) if any(a <= character < b for character in range(start, stop))
        ]
        assert float(score) == max(touching, default=float(scores.min()))


@pytest.mark.parametrize("text", TEXTS)
def test_the_best_word_stays_the_best(text):
    (passage,) = cases.passages([text])
    spans = words()(text, return_offsets_mapping=True)["offset_mapping"]
    for best, (start, stop) in enumerate(spans):
        scores = torch.zeros(len(spans))
        scores[best] = 1.0
        top = int(carried(scores, overlap_map(passage.spans, spans)).argmax())
        assert max(passage.spans[top][0], start) < min(passage.spans[top][1], stop)


@pytest.mark.parametrize("text", TEXTS)
def test_equal_tokenizers_change_nothing(text):
    (passage,) = cases.passages([text])
    one_character_each = all(stop - start == 1 and text[start:stop].isascii() for start, stop in passage.spans)
    scores = torch.randn(len(passage.spans), generator=torch.Generator().manual_seed(0))
    found = carried(scores, overlap_map(passage.spans, passage.spans))
    if one_character_each:
        assert_close(found, scores)
    assert found.argmax() == scores.argmax() or passage.spans[found.argmax()] == passage.spans[scores.argmax()]


def test_what_the_encoder_cut_off_and_what_is_no_text_gets_the_lowest_score():
    mapping = overlap_map([(0, 0), (0, 3), (3, 6), (6, 9)], [(0, 0), (0, 4), (4, 6)])
    assert_close(carried(torch.tensor([9.0, 2.0, 5.0]), mapping), torch.tensor([2.0, 2.0, 5.0, 2.0]))


def test_gradients_reach_the_chosen_scores():
    scores = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
    carried(scores, overlap_map([(0, 2), (2, 3)], [(0, 1), (1, 2), (2, 3)])).sum().backward()
    assert_close(scores.grad, torch.tensor([0.0, 1.0, 1.0]))
