from collections import Counter

import pytest

from budwood.data.keep_set import load_keep_set
from budwood.errors import DataError


def test_the_shipped_set_is_large_varied_and_unambiguous():
    facts = load_keep_set()
    topics = Counter(fact.topic for fact in facts)
    prompts = Counter(prompt for fact in facts for prompt in fact.prompts)
    assert len(facts) >= 400
    assert len(topics) >= 15 and max(topics.values()) <= len(facts) / 5
    assert sum(len(fact.prompts) > 1 for fact in facts) >= 300
    assert max(prompts.values()) == 1


def test_objects_come_last_and_are_not_given_away():
    for fact in load_keep_set():
        for probe in fact.probes:
            assert probe.text == f"{probe.prompt}{fact.object}."
            assert probe.answer == fact.object == fact.object.strip()
            assert fact.object.casefold() not in probe.prompt.casefold().split()
            assert probe.prompt == f"{probe.prompt.strip()} "


def test_a_users_own_set(tmp_path):
    path = tmp_path / "keep.jsonl"
    path.write_text('{"topic": "x", "prompts": ["Bees make"], "object": "honey"}\n', encoding="utf-8")
    (fact,) = load_keep_set(path)
    assert fact.probes[0].text == "Bees make honey."
    path.write_text('{"topic": "x", "prompts": [], "object": "honey"}\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 1, field 'prompts'"):
        load_keep_set(path)
    path.write_text('{"topic": "x", "object": "honey"}\n', encoding="utf-8")
    with pytest.raises(DataError, match="field 'prompts': the field is missing"):
        load_keep_set(path)
