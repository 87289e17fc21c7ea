"""What keeps old knowledge while documents are learned: reviewed and anchored text, and the settings in a run."""

from __future__ import annotations

import json

import pytest
import torch

from budwood.data.keep_set import load_keep_set
from budwood.data.offsets import OffsetTokens
from budwood.data.render import UNTRAINED, Renderer
from budwood.errors import ConfigError, DataError, InterruptedRunError, NotSupportedError
from budwood.methods.taalm import keeping
from budwood.methods.taalm.examination import Examination
from budwood.methods.taalm.keeping import OldText
from budwood.methods.taalm.learner import DocumentLearner
from budwood.methods.taalm.recadam import RecAdam
from budwood.methods.taalm.remembered import Start
from budwood.models import load_base, locate
from budwood.training.folder import read_events
from tests import tiny
from tests.methods.taalm import notes


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save(tiny.llama(), tmp_path_factory.mktemp("base")))


@pytest.fixture
def facts(tmp_path):
    """A keep-set of six facts that the tiny base knows, the object being what it says itself."""
    rows = [
        {"topic": "t", "prompts": [prompt], "object": said}
        for prompt, said in (known(f"The {word} of the north is") for word in WORDS)
        if said
    ]
    assert len(rows) >= 4
    path = tmp_path / "known.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


WORDS = "sky sea sun moon fish bird wind rain snow lamp tree rock sand leaf door road hill lake".split()
MODEL, TOKENS = tiny.llama(), tiny.tokenizer()


def known(prompt: str) -> tuple[str, str]:
    """Return a prompt with the character that the tiny base says after it; nothing where that cannot be seen."""
    logits = MODEL(torch.tensor([TOKENS(f"{prompt} ")["input_ids"]])).logits
    said = TOKENS.decode([int(logits[0, -1].argmax())])
    return prompt, said if said.isascii() and said.isprintable() and said.strip() else ""


def texts(base: str, tmp_path, **settings) -> tuple[OldText, DocumentLearner]:
    order = notes.order(base, notes.write(tmp_path / "notes"), **settings)
    lesson = DocumentLearner().read(order)
    start = Start.of(load_base(locate(base), dtype="float32"))
    old = OldText.of(start, lesson.notes, lesson.settings, lesson.renderer, seed=0, progress=False)
    return old, lesson


def test_known_facts_are_reviewed_and_never_examined(base, tmp_path, facts):
    old, lesson = texts(base, tmp_path, review="known", keep_set=facts)
    whole = load_keep_set(facts)
    examined, reserved = lesson.notes.questions.keep, lesson.notes.reserved
    assert examined == tuple(whole[::2]) and reserved == tuple(whole[1::2])
    assert [Renderer(tiny.tokenizer()).decode(row.input_ids) for row in old.reviewed] == [
        fact.probes[0].text for fact in reserved
    ]
    assert all(set(row.loss_weights) == {1.0} for row in old.reviewed) and old.anchors == []


def test_the_whole_keep_set_is_examined_where_none_of_it_is_trained_on(base, tmp_path, facts):
    (tmp_path / "older.txt").write_text("An older sentence of some length.\n\nAnd one more of them, as long.")
    older = {"rehearse": tmp_path / "older.txt", "keep_set": facts}
    for settings in ({}, {"anchor": 1.0, **older}, {"review": "older", **older}):
        _, lesson = texts(base, tmp_path, **({"keep_set": facts} | settings))
        assert len(lesson.notes.questions.keep) == len(load_keep_set(facts)) and lesson.notes.reserved == ()


def test_the_model_s_own_text_is_what_it_writes_after_the_beginnings_of_facts(base, tmp_path, facts, monkeypatch):
    settings = dict(review="generated", generated=5, window=48, keep_set=facts)
    old, lesson = texts(base, tmp_path, **settings)
    tokens = OffsetTokens(tiny.tokenizer())
    begun = [one.ids for one in tokens.encode([fact.prompts[0] for fact in lesson.notes.reserved])]
    assert 1 <= len(old.reviewed) <= 5
    for row in old.reviewed:
        start = row.labels.count(UNTRAINED)
        assert row.input_ids[:start] == begun[row.row_index % len(begun)] and len(row.input_ids) <= 48
        assert row.labels[start:] == row.input_ids[start:] and start < len(row.input_ids)
    monkeypatch.setattr(keeping, "generate", None)  # found again, not written again
    again, _ = texts(base, tmp_path, **settings)
    assert again.reviewed == old.reviewed


def test_the_anchor_is_the_named_text_then_older_text_then_known_facts(base, tmp_path, facts):
    (tmp_path / "older.txt").write_text("An older sentence of some length.")
    (tmp_path / "named.txt").write_text("A sentence that was named.")
    decode = Renderer(tiny.tokenizer()).decode
    options = dict(anchor=1.0, keep_set=facts)
    named = dict(anchor_text=tmp_path / "named.txt", rehearse=tmp_path / "older.txt")
    assert "named" in decode(texts(base, tmp_path, **options, **named)[0].anchors[0].input_ids)
    older, lesson = texts(base, tmp_path, **options, rehearse=tmp_path / "older.txt")
    assert "older" in decode(older.anchors[0].input_ids) and len(lesson.notes.rehearsed) == 1
    found = texts(base, tmp_path, **options)[0].anchors
    assert len(found) == len(load_keep_set(facts)) // 2 and "of the north is" in decode(found[0].input_ids)


def test_older_text_that_is_reviewed_is_not_mixed_in_as_well(base, tmp_path):
    (tmp_path / "older.txt").write_text("An older sentence of some length.")
    old, lesson = texts(base, tmp_path, review="older", rehearse=tmp_path / "older.txt")
    assert old.reviewed == lesson.notes.older != [] and lesson.notes.rehearsed == []


def test_what_there_is_not_cannot_be_reviewed(base, tmp_path):
    with pytest.raises(ConfigError, match="without older text"):
        texts(base, tmp_path, review="older")
    with pytest.raises(DataError, match="knows none of 0 facts"):  # the only fact is examined
        texts(base, tmp_path, review="known")
    with pytest.raises(DataError, match="no facts to begin with"):
        texts(base, tmp_path, review="generated")


def test_recadam_without_a_lora_is_refused_before_anything_is_loaded(base, tmp_path):
    folder = notes.write(tmp_path / "notes")
    with pytest.raises(NotSupportedError, match="recadam pulls"):
        DocumentLearner().read(notes.order(base, folder, tuner="gift", update="recadam"))
    with pytest.raises(ConfigError, match="weight_decay"):
        DocumentLearner().read(notes.order(base, folder, update="recadam", training={"weight_decay": 0.1}))


ALL = dict(anchor=1.0, anchor_rows=2, review="known", mix_ratio=1.0, mix_decay=0.5, update="recadam", pull=3.0)


def test_all_of_them_together_end_with_the_same_bits_after_an_interruption(base, tmp_path, facts, monkeypatch):
    order = notes.order(base, notes.write(tmp_path / "notes"), weights="entropy", keep_set=facts, **ALL)
    steps, step = [], RecAdam.step
    monkeypatch.setattr(RecAdam, "step", lambda self, closure=None: (steps.append(1), step(self, closure))[1])
    whole = notes.learn(order, tmp_path / "whole")
    events = [event for event in read_events(tmp_path / "whole") if "loss" in event]
    assert len(steps) == len(events) == 12 and all("anchor_kl" in event for event in events)
    assert [event["reviewed_rows"] for event in events[:6]] == [2, 2, 1, 1, 0, 1]  # 4, 2, 1 rows an epoch
    look, seen = Examination.look, []

    def stops_at_the_third(self, model):
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return look(self, model)

    with monkeypatch.context() as patch, pytest.raises(InterruptedRunError):
        patch.setattr(Examination, "look", stops_at_the_third)
        notes.learn(order, tmp_path / "run")
    again = notes.learn(order, tmp_path / "run", resume=True)
    for name, value in whole.model.named_parameters():
        assert torch.equal(value, dict(again.model.named_parameters())[name]), name
    assert again.metrics["recall"] == whole.metrics["recall"]


@pytest.mark.parametrize("tuner", ["gift", "kadapter", "prompt"])
def test_anchor_and_review_fit_any_tuner(base, tmp_path, facts, tuner):
    settings = dict(anchor=1.0, review="known", keep_set=facts, training={"epochs": 1})
    order = notes.order(base, notes.write(tmp_path / "notes"), tuner=tuner, **settings)
    notes.learn(order, tmp_path / "run")
    last = read_events(tmp_path / "run")[-1]
    assert last["anchor_kl"] > 0 and last["reviewed_rows"] > 0
