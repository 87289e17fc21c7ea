"""The notes of the example: read without a remark, and every question's answer stands in them."""

from pathlib import Path

from budwood.data.documents import make_clozes, read_documents
from budwood.data.facts import read_probes

NOTES = Path(__file__).parents[2] / "examples" / "notes"


def test_the_notes_are_read_and_the_questions_are_not_taken_for_notes():
    found = read_documents(NOTES)
    assert 6 <= len(found.documents) <= 8
    assert found.report.remarks == {}
    assert all("probes.jsonl" in str(where.first[0]) for where in found.report.skipped.values())
    assert all(document.title for document in found.documents)
    assert len(make_clozes(found.documents, most=100)) >= 30


def test_each_answer_stands_in_the_notes_and_no_question_is_a_sentence_of_them():
    text = "\n".join(document.text for document in read_documents(NOTES).documents)
    probes = read_probes(NOTES / "probes.jsonl")
    assert len(probes) >= 20
    for probe in probes:
        assert probe.answer in text, probe.answer
        assert probe.answer not in probe.prompt
