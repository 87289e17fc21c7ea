import random

import pytest

from budwood.data.documents import Document, make_windows
from budwood.data.documents.document import Layout
from budwood.data.offsets import NOWHERE, OffsetTokens
from budwood.data.problems import Origin
from budwood.data.render import UNTRAINED
from budwood.errors import ConfigError
from tests.data.samples import MERGES, byte_tokenizer, space_tokenizer

ORIGIN = Origin("a.txt")
BYTES = OffsetTokens(byte_tokenizer(merges=MERGES, bos=True))


def document(*paragraphs, title=""):
    layout = Layout(title)
    for text in paragraphs:
        if text.startswith("# "):
            layout.heading(text[2:], 1)
        else:
            layout.paragraph(text)
    return layout.document(ORIGIN)


def random_document(rng):
    words = ["Ann", "sat.", "Then", "12", "é日", "x" * 90, "it", "rained", "on.", "U.S."]
    parts = [" ".join(rng.choice(words) for _ in range(rng.randrange(1, 30))) for _ in range(rng.randrange(1, 5))]
    parts.insert(rng.randrange(len(parts)), "# Some heading")
    return document(*parts, title="A title")


@pytest.mark.parametrize("tokens", [BYTES, OffsetTokens(space_tokenizer())], ids=["bytes", "spaces"])
@pytest.mark.parametrize("with_heading", [True, False])
def test_windows_are_short_enough_and_hold_every_character_once(tokens, with_heading):
    rng = random.Random(0)
    for _ in range(30):
        one = random_document(rng)
        windows = make_windows([one], tokens, max_tokens=64, with_heading=with_heading)
        inside = [i for window in windows for i in range(*window.span)]
        assert inside == sorted(set(inside))
        assert not "".join(c for i, c in enumerate(one.text) if i not in set(inside)).strip()
        for index, window in enumerate(windows):
            assert len(window.encoded.input_ids) <= 64
            assert window.encoded.row_index == index
            assert window.encoded.input_ids == tokens.encode([window.context + window.text])[0].ids


def test_spans_point_into_the_document_and_the_context_is_not_learned():
    text = ["# Head", "One sat here. Two sat there. Three é日 sat.", "Four sat."]
    one = document(*text, title="Title")
    windows = make_windows([one], BYTES, max_tokens=40)
    assert [window.context for window in windows][1:] == ["Head\n\n"] * (len(windows) - 1)
    for window in windows:
        encoded = window.encoded
        for i, (token, span) in enumerate(zip(encoded.input_ids, window.spans, strict=True)):
            learned = span != NOWHERE
            assert encoded.labels[i] == (token if learned else UNTRAINED)
            assert encoded.loss_weights[i] == float(learned)
            if learned:
                assert window.span[0] <= span[0] < span[1] <= window.span[1]
        covered = {i for start, stop in window.spans for i in range(start, stop) if stop}
        assert covered == set(range(*window.span))


def test_a_window_is_as_long_as_whole_sentences_allow_and_headings_go_with_what_follows():
    sizes = "Aaaa aaaa. Bbbb bbbb. Cccc cccc."
    windows = make_windows([document(sizes, "# Head", "Dddd dddd dddd.")], BYTES, max_tokens=30, with_heading=False)
    assert [window.text for window in windows] == ["Aaaa aaaa. Bbbb bbbb.", "Cccc cccc.", "Head\n\nDddd dddd dddd."]


def test_a_long_sentence_is_cut_at_spaces():
    words = " ".join(f"w{i:03d}" for i in range(40))
    windows = make_windows([document(words)], BYTES, max_tokens=30)
    assert " ".join(window.text for window in windows) == words


def test_a_context_that_would_take_more_than_a_quarter_is_left_out():
    short, long = "# Head", "# A heading that goes on and on"
    for heading, context in ((short, "Head\n\n"), (long, "")):
        one = document(heading, "Some text follows here. And then there is some more of it.")
        assert make_windows([one], BYTES, max_tokens=48)[-1].context == context


def test_weights_fall_on_what_is_learned_only():
    one = document("# Head", "One sat here. Two sat there.")
    window = make_windows([one], BYTES, max_tokens=24)[-1]
    weights = [0.5 + i for i in range(len(window.spans))]
    weighted = window.weighted(weights)
    expected = [0.0 if span == NOWHERE else weight for span, weight in zip(window.spans, weights, strict=True)]
    assert weighted.encoded.loss_weights == expected
    assert weighted.encoded.labels == window.encoded.labels
    assert window.encoded.loss_weights != expected
    with pytest.raises(AssertionError):
        window.weighted([1.0])


def test_windows_are_counted_over_documents():
    windows = make_windows([document("One sat."), document("Two sat.")], BYTES, max_tokens=30)
    assert [window.encoded.row_index for window in windows] == [0, 1]
    assert make_windows([], BYTES, max_tokens=30) == []
    assert make_windows([Document("", ORIGIN)], BYTES, max_tokens=30) == []


def test_too_short_windows_are_refused():
    with pytest.raises(ConfigError, match="windows of 15 tokens"):
        make_windows([document("x")], BYTES, max_tokens=15)


def test_the_work_grows_with_the_text_and_is_told():
    """A text without a stop is not tokenised again and again for each halving."""

    class Counting(OffsetTokens):
        characters = 0

        def encode(self, texts):
            Counting.characters += sum(map(len, texts))
            return super().encode(texts)

        def counts(self, texts):
            Counting.characters += sum(map(len, texts))
            return super().counts(texts)

    text, told = "word " * 20_000, []
    windows = make_windows(
        [document(text)], Counting(BYTES.tokenizer), max_tokens=64, progress=lambda *step: told.append(step)
    )
    assert Counting.characters < 8 * len(text)  # once whole, in up to four halvings, and as windows
    assert " ".join(window.text for window in windows).split() == text.split()
    names = {name for name, _, _ in told}
    assert "text divided, characters" in names and all(0 < done <= total for _, done, total in told)
