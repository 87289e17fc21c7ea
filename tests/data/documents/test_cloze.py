import pytest

from budwood.data.documents import Document, make_clozes
from budwood.data.documents.cloze import LONGEST
from budwood.data.documents.document import Layout
from budwood.data.problems import Origin


def document(text, name="a.txt"):
    layout = Layout()
    for paragraph in text.split("\n\n"):
        layout.paragraph(paragraph)
    return layout.document(Origin(name))


def blanks(text, most=100):
    return [(one.kind, one.probe.prompt, one.probe.answer) for one in make_clozes([document(text)], most=most)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "The boat was built by Ida Moor of Telvik in spring.",
            ("name", "The boat was built by ", "Ida Moor of Telvik"),
        ),
        ("The boat is now worth 6,500 crowns to us.", ("number", "The boat is now worth ", "6,500")),
        ("The boat is as green as seaweed is.", ("word", "The boat is as green as ", "seaweed")),
        (
            "1. Bookings are made at the counter by postcard.",
            ("word", "1. Bookings are made at the counter by ", "postcard"),
        ),
        ("It opens at 6:40 and closes by 9.", ("number", "It opens at 6:40 and closes by ", "9")),
    ],
    ids=["name", "number", "word", "list", "last"],
)
def test_kinds_of_blanks(text, expected):
    assert blanks(text) == [expected]


@pytest.mark.parametrize(
    "text",
    ["By Ida Moor.", "It was Ida who called Ida a fool and a good friend of Ida", "it is as it was and so on", ""],
    ids=["too early", "given away", "nothing", "empty"],
)
def test_no_blank_without_four_words_before_it_or_where_the_prompt_gives_it_away(text):
    assert blanks(text) == []


def test_a_short_sentence_borrows_the_one_before_it_but_not_a_heading_or_another_paragraph():
    assert ("name", "We met on the quay. I saw ", "Ida Moor") in blanks("We met on the quay. I saw Ida Moor.")
    assert not any(answer == "Ida Moor" for _, _, answer in blanks("We met on the quay.\n\nI saw Ida Moor."))


def test_common_words_of_the_documents_are_not_asked_for():
    assert blanks("There was a big library. We all like the library here.") == []


def test_the_blank_stands_where_the_span_says():
    one = document("The first line is here.\n\nThe boat was built by Ida Moor in spring.")
    for cloze in make_clozes([one], most=10):
        assert one.text[slice(*cloze.span)] == cloze.probe.answer
        assert one.text[: cloze.span[0]].endswith(cloze.probe.prompt)
        assert cloze.probe.text.endswith(cloze.probe.answer)


def test_blanks_are_spread_over_documents_and_repeat_with_the_seed():
    long = " ".join(f"The boat {i} was built by Ida{chr(97 + i)} in spring." for i in range(20))
    documents = [document(long), document("The house was built by Bo Ek in spring.", "b.txt")]
    chosen = make_clozes(documents, most=4, seed=1)
    assert sum(one.document is documents[1] for one in chosen) == 1
    assert len(chosen) == 4 and chosen == make_clozes(documents, most=4, seed=1)
    assert chosen != make_clozes(documents, most=4, seed=2)
    assert make_clozes(documents, most=0) == make_clozes([Document("", Origin("x"))], most=9) == []


def test_what_never_stops_is_asked_about_in_parts():
    text = " ".join(f"word{i % 7} Name{chr(65 + i % 26)}" for i in range(2000))
    made = make_clozes([document(text)], most=100)
    assert made and max(len(one.probe.text) for one in made) <= 2 * LONGEST + 1
