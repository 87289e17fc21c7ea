"""The page of a run from documents: shades follow weights, facts are told apart, texts are escaped."""

from __future__ import annotations

import pytest

from budwood.reports.documents import LEVELS, learned, shade, strips
from budwood.reports.report import write_report
from budwood.storage import write_json
from tests.reports.test_report import Page, make_run

TEXT = "The <b>Heron</b> cost 900."
WEIGHTS = {
    "origin": "scorer: head, smollm2",
    "documents": [
        {"file": "a.md", "title": "Ships", "text": TEXT, "weights": [[0, 3, 0.2], [7, 12, 8.0], [22, 25, 2.0]]},
        {"file": "b.md", "title": "", "text": "x" * 30_000, "weights": []},
    ],
}


def kind(before: float, after: float) -> dict:
    return {side: {"probes": 2, "accuracy": value, "exact": value, "nll": 1.0} for side, value in
            (("before", before), ("after", after))}  # fmt: skip


def probe(answer: str, before: float, after: float) -> dict:
    sides = {"before": before, "after": after, "nll_before": 5.0, "nll_after": 5.0 - after}
    return {"prompt": f"Which {answer}", "answer": answer, **sides}


RECALL = {
    "own_words": kind(0.0, 1.0),
    "other_words": kind(0.0, 0.5),
    "keep": kind(1.0, 0.5),
    "learned_by": "other_words",
    "keep_wanted": 0.95,
    "best_epoch": 2.0,
    "kept_enough": False,
    "paper": {"epoch": 3.0, "learn": 0.5, "keep": 0.4, "total": 0.9},
    "probes": {
        "own_words": [probe("own", 0, 1)],
        "other_words": [probe("<i>hit</i>", 0, 1), probe("known", 1, 1), probe("far", 0, 0.1), probe("miss", 0, 0.5)],
        "keep": [probe("stays", 1, 1), probe("lost", 1, 0)],
    },
    "curve": [{"epoch": e, "learn": 0.1 * e, "keep": 1 - 0.1 * e, "nll": 2.0} for e in range(4)],
}


def test_shades_grow_with_the_weight_and_begin_above_uniform():
    levels = [shade(weight, 16.0) for weight in (0.0, 0.2, 1.0, 1.01, 2.0, 4.0, 8.0, 16.0)]
    assert levels == [0, 0, 0, 1, 3, 5, 7, LEVELS]
    assert shade(1.0, 1.0) == 0  # uniform weights shade nothing


def test_a_strip_is_the_whole_text_in_pieces():
    first, second = strips(WEIGHTS)
    assert "".join(text for text, _ in first.pieces) == TEXT and not first.cut
    assert [(text, level) for text, level in first.pieces if level] == [("Heron", 9), ("900", 3)]
    assert second.title == "b.md" and second.cut and len(second.pieces[0][0]) == 20_000


def test_facts_are_told_apart_by_what_became_of_them():
    found = learned(RECALL)
    assert [fact["answer"] for fact in found.learned] == ["<i>hit</i>"]
    assert [fact["answer"] for fact in found.missed] == ["miss", "far"]
    assert [fact["answer"] for fact in found.forgotten] == ["lost"]
    assert [row["kind"].split(",")[0] for row in found.figures] == ["learned", "memorised", "kept"]
    assert learned({}) is None and strips({}) == []


@pytest.fixture
def page(tmp_path) -> str:
    run = make_run(tmp_path / "run")
    write_json(run / "documents" / "weights.json", WEIGHTS)
    write_json(run / "documents" / "recall.json", RECALL)
    made = write_report(run)
    assert (run / "plots" / "recall.svg").read_text().count("<path") > 4
    return made["report"].read_text()


def test_the_page_answers_what_was_learned_forgotten_and_looked_at(page):
    read = Page(page)
    for words in ("What it learned, and what it kept", "memorised, in the documents' own words", "What it looked at"):
        assert words in read.text
    assert TEXT in read.text and "<i>hit</i>" in read.text and not {"b", "i", "script"} & set(read.tags)
    assert ("span", "class", "w9") in read.attributes
    assert "kept most, since none kept" in " ".join(read.text.split())


def test_of_many_documents_the_first_are_shown(tmp_path):
    run = make_run(tmp_path / "run")
    write_json(run / "documents" / "weights.json", {"origin": "x", "documents": WEIGHTS["documents"][:1] * 51})
    read = Page(write_report(run)["report"].read_text())
    assert read.text.count(TEXT) == 50 and "The first 50 of 51." in read.text


def test_the_rule_of_forgetting_stands_beside_what_was_forgotten(page):
    text = " ".join(Page(page).text.split())
    assert "Forgotten Known is an answer of which each token is the most likely one" in text
