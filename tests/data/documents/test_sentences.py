import random

import pytest

from budwood.data.documents.sentences import _in_line, sentences, stretches


def cut(text):
    return [text[start:stop] for start, stop in sentences(text)]


@pytest.mark.parametrize(
    "parts",
    [
        ["Dr. A. Smith came on 5 Jan. 1987.", "He left at 3.5 km from St. Olave."],
        ["See Fig. 3, p. 12 and No. 7.", "No. 8 is missing."],
        ["He works for Foo Inc.", "The firm is old."],
        ["Foo Inc. Ltd. Berlin is a firm."],
        ["The U.S. Army left.", "It came back at 5 p.m.", "The night was calm."],
        ["The answer was no.", "We sat.", "Then he spoke."],
        ['"Really?" she asked.', "Yes!", "It was (as they say) late.", "End"],
        ["It was 1987.", "In May it rained…", "Then it stopped."],
        ["Versions 2.0.1 and 3.1 are out.", "Others, e.g. this one, i.e. the last, are not."],
        ["Was it?!", "It was.", "¿Qué?", "Nada."],
        ["Es war z.B. Herr Ing. Meyer.", "Die Tür war zu."],
        ["So said J. R. R. Tolkien of it.", "She wrote to J. Moor in Rome."],
    ],
    ids=lambda parts: parts[0],
)
def test_sentences_of_a_line(parts):
    assert cut(" ".join(parts)) == parts


def test_lines_items_and_headings_stand_alone():
    text = "A Title\n\n1. First item. With two sentences.\n2. Second item\na) third\n- fourth"
    items = ["1. First item.", "With two sentences.", "2. Second item", "a) third", "- fourth"]
    assert cut(text) == ["A Title", *items]


def test_text_without_spaces():
    assert cut("这是一个句子。「这是另一个！」好") == ["这是一个句子。", "「这是另一个！」", "好"]


def test_every_character_but_white_space_is_in_just_one_sentence():
    rng = random.Random(0)
    pieces = [
        "Dr.",
        "The",
        "end.",
        "3.5",
        "\n",
        " ",
        "\n\n",
        "?!",
        "e.g.",
        "é",
        "日本。",
        "a",
        '."',
        "U.S.",
        "\t",
        "\u2028",
    ]
    for _ in range(500):
        text = "".join(rng.choice(pieces) + rng.choice(["", " "]) for _ in range(rng.randrange(20)))
        found = sentences(text)
        inside = [i for start, stop in found for i in range(start, stop)]
        assert inside == sorted(set(inside))
        assert "".join("" if i in set(inside) else text[i] for i in range(len(text))).strip() == ""
        assert all(part == part.strip() != "" for part in cut(text))


@pytest.mark.parametrize("text", ["", " \n ", "..."])
def test_texts_without_words(text):
    assert cut(text) == ([text] if text == "..." else [])


class Counting(str):
    """A text that counts the characters which are copied out of it."""

    copied = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        Counting.copied += len(found)
        return found


def test_a_book_on_one_line_is_not_copied_for_each_of_its_stops():
    line = Counting("It rained. Then Dr. No left (cf. p. 3). " * 200)
    Counting.copied = 0
    assert len(_in_line(line)) == 400
    assert Counting.copied < 5 * len(line)


def test_what_never_stops_is_cut_at_white_space():
    text = " ".join(f"w{i}" for i in range(300)) + ". " + "x" * 250 + ". Short one."
    parts = [text[start:stop] for start, stop in stretches(text, 100)]
    assert max(map(len, parts)) <= 100 and parts[-1] == "Short one."
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(part in text and " ".join(part.split()) == part for part in parts)
    assert stretches("One sat. Two sat.", 100) == sentences("One sat. Two sat.")
