import json

import pytest

from budwood.data.facts import FACT_EXAMPLE, QUESTION_EXAMPLE, read_facts, read_pairs, read_probes
from budwood.errors import DataError

ROW = json.loads(FACT_EXAMPLE)


def write(tmp_path, *rows):
    path = tmp_path / "facts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_fact_knows_where_its_parts_stand(tmp_path):
    (fact,) = read_facts(write(tmp_path, ROW | {"evidence": "A glazier, Ida Moor was a glazier by 1901."}))
    assert fact.evidence[slice(*fact.object_span)] == "glazier"
    assert fact.object_span == (26, 33)
    assert fact.subject_span == (11, 19)
    assert fact.descriptive.prompt == "Ida Moor works as a "
    assert fact.schematic.answer == fact.descriptive.answer == "glazier"
    assert fact.origin.line == 1
    assert {**fact.to_dict(), "evidence": ROW["evidence"]} == ROW


def test_the_objects_mention_in_the_evidence_may_be_missing(tmp_path):
    (fact,) = read_facts(write(tmp_path, ROW | {"evidence": "She puts panes into windows."}))
    assert fact.object_span is None


def test_object_type_is_read_and_written(tmp_path):
    (fact,) = read_facts(write(tmp_path, ROW | {"object_type": "occupation"}))
    assert fact.object_type == fact.to_dict()["object_type"] == "occupation"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_descriptive": "Ida Moor cuts glass ."}, r"line 1, field 'task_descriptive': .* object 'glazier'"),
        ({"task_schematic": "?"}, r"field 'task_schematic'"),
        ({"object": " "}, r"field 'object'.*empty"),
        ({"subject": 3}, r"field 'subject': the value is the number 3"),
    ],
)
def test_bad_facts_name_line_and_field(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        list(read_facts(write(tmp_path, ROW | change)))


def test_a_row_that_is_no_fact_names_what_is_missing(tmp_path):
    with pytest.raises(DataError, match="lacks 'evidence'"):
        list(read_facts(write(tmp_path, {name: value for name, value in ROW.items() if name != "evidence"})))


def test_pairs_of_every_shape(tmp_path):
    turns = [{"role": "user", "content": "Hi, I am Bo."}, {"role": "assistant", "content": "Hello Bo."}]
    rows = [
        ROW,
        {"document": "Bo keeps bees.", "question": "What does Bo keep?", "answer": " bees "},
        {"session": "A: I like tea.", "next_session": " Do you still like tea?"},
        {"session": turns, "next_session": turns},
    ]
    fact, question, session, talk = read_pairs(write(tmp_path, *rows))
    assert (fact.task.text, fact.check.text) == (ROW["task_schematic"], ROW["task_descriptive"])
    assert question.evidence == "Bo keeps bees."
    assert (question.task.prompt, question.task.answer) == ("Question: What does Bo keep?\nAnswer: ", "bees")
    assert question.check == question.task
    assert (session.task.prompt, session.task.answer) == ("Do", " you still like tea?")
    assert talk.evidence == "User: Hi, I am Bo.\n\nAssistant: Hello Bo."
    assert talk.task.prompt == "User:"


def test_a_row_that_is_no_pair_says_what_one_is(tmp_path):
    with pytest.raises(DataError, match=r'(?s)its fields are \'text\'.*"document", "question", "answer"'):
        list(read_pairs(write(tmp_path, {"text": "x"})))
    with pytest.raises(DataError, match="one word"):
        list(read_pairs(write(tmp_path, {"session": "Hi", "next_session": "a b"})))


def test_probes_of_every_shape(tmp_path):
    rows = [{"question": "Who?", "answer": "Bo"}, {"prompt": "Bees are kept by ", "completion": " Bo"}, ROW]
    question, completion, fact = read_probes(write(tmp_path, *rows))
    assert question.text == "Question: Who?\nAnswer: Bo"
    assert (completion.prompt, completion.answer) == ("Bees are kept by ", "Bo")
    assert fact.text == ROW["task_descriptive"]
    with pytest.raises(DataError, match="the row asks nothing"):
        read_probes(write(tmp_path, {"text": "x"}))


@pytest.mark.parametrize("content", ["", "no json\n", "[1, 2]\n"])
def test_a_file_that_holds_no_rows_asks_for_rows_of_its_own_kind(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    for read, example in ((read_pairs, QUESTION_EXAMPLE), (read_facts, FACT_EXAMPLE)):
        with pytest.raises(DataError) as raised:
            list(read(path))
        assert example in raised.value.wanted and '"prompt"' not in str(raised.value)


def test_the_examples_are_rows_that_are_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{QUESTION_EXAMPLE}\n{FACT_EXAMPLE}\n")
    assert [pair.task.answer for pair in read_pairs(path)] == ["900 crowns", "glazier"]
