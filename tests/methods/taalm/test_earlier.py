"""New documents on top of an earlier run: where it starts, what is kept of it, and what does not fit."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file

from budwood.data.problems import Origin
from budwood.errors import AdapterError, ConfigError, InterruptedRunError
from budwood.evals.recall import ProbeScore, Recall
from budwood.methods.taalm.earlier import EarlierRun
from budwood.methods.taalm.examination import Examination
from budwood.methods.taalm.learner import DocumentLearner
from budwood.models import load_base
from budwood.storage import read_json, write_json
from budwood.training.checkpoints import trainable_tensors
from budwood.training.folder import read_events
from budwood.tuning.lesson import AdapterStart
from tests import tiny
from tests.methods.taalm import notes

NEW = "The harbour master of the town is Wilhelmina Oake. She was chosen in the autumn of 1987."


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save(tiny.llama(), tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def first(base, tmp_path_factory):
    """A run on notes, published, with an account in which it learned what its model says; the place it lies in."""
    place = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUDWOOD_CACHE", str(place / "cache"))
        learned = notes.learn(notes.order(base, notes.write(place / "notes")), place / "run")
    learned.model.save_pretrained(place / "run" / "adapter", save_embedding_layers=False)
    said = [record(prompt, answer, after=1) for prompt in PROMPTS if (answer := says(learned.model, prompt))][:4]
    assert len(said) == 4
    wrong, half = record("The year of the flood is", "1", after=1), record("The gate of the park is", "r", after=0.5)
    kinds = {"own_words": [*said[:2], wrong, half], "other_words": said[2:3], "earlier": said[3:], "keep": [wrong]}
    path = place / "run" / "documents" / "recall.json"
    write_json(path, read_json(path) | {"probes": kinds})
    return place


PROMPTS = [
    f"The {word} of the {place} is"
    for word in "ship book founder library price lamp garden harbour".split()
    for place in "old town, first house, north".split(", ")
]


def says(model, prompt: str) -> str:
    """Return the character that a model is most likely to write after a prompt; nothing if it cannot be seen."""
    logits = model(input_ids=torch.tensor([tiny.tokenizer()(f"{prompt} ")["input_ids"]])).logits
    said = tiny.tokenizer().decode([int(logits[0, -1].argmax())])
    return said if said.isascii() and said.isprintable() and said.strip() else ""


def record(prompt: str, answer: str, after: float) -> dict:
    start = len(prompt) + 1
    return {"text": f"{prompt} {answer}.", "target": [start, start + len(answer)], "answer": answer, "after": after}


def order_on(first, base, tmp_path, **settings):
    folder = tmp_path / "new"
    folder.mkdir(exist_ok=True)
    (folder / "new.txt").write_text(NEW)
    (tmp_path / "keep.jsonl").write_text(json.dumps(notes.KEEP) + "\n")
    made = notes.order(base, folder, base_run=first / "run", **settings)
    return dataclasses.replace(made, start=AdapterStart(first / "run", first / "run" / "adapter"))


def test_it_starts_with_the_adapter_of_that_run(first, base, tmp_path):
    lesson = DocumentLearner().read(order_on(first, base, tmp_path))
    adapted = lesson._with_earlier(load_base(lesson.order.source, dtype="float32"))
    saved = load_file(first / "run" / "adapter" / "adapter_model.safetensors")
    found = {name.replace(".default", ""): tensor for name, tensor in trainable_tensors(adapted).items()}
    assert found.keys() == saved.keys() and all(torch.equal(found[name], saved[name]) for name in saved)


def test_what_that_run_learned_is_asked_again_and_to_be_kept(first, base, tmp_path):
    """All but what it only claims to have learned; the least of what is to be kept decides."""
    order = order_on(first, base, tmp_path, training={"epochs": 4, "learning_rate": 0.1})
    notes.learn(order, tmp_path / "run")
    told = read_json(tmp_path / "run" / "documents" / "recall.json")
    account = read_json(first / "run" / "documents" / "recall.json")["probes"]
    right = [*account["own_words"][:2], *account["other_words"], *account["earlier"]]
    assert [one["text"] for one in told["probes"]["earlier"]] == [one["text"] for one in right]
    assert told["earlier"]["before"]["accuracy"] == 1
    looks = [event for event in read_events(tmp_path / "run") if "recall/cost" in event]
    assert all(look["recall/kept"] == look["recall/earlier_accuracy"] for look in looks)
    assert looks[0]["recall/kept"] == 1 > looks[-1]["recall/kept"]  # so high a rate overwrites it
    assert [point["keep"] for point in told["curve"]] == [look["recall/kept"] for look in looks]


def test_what_was_learned_is_what_was_answered_in_full_of_every_kind_but_the_kept(first):
    found = EarlierRun.read(AdapterStart(first / "run", first / "run" / "adapter")).learned
    assert len(found) == 5 and found[2].prompt == "The year of the flood is "
    assert all(len(probe.answer) == 1 and probe.text.endswith(f" {probe.answer}.") for probe in found)


def test_each_kind_is_to_be_kept_by_itself():
    """A forgotten tenth of the earlier run's few facts is not lost among hundreds of general ones."""
    scores = {"own_words": 0.5, "keep": 1.0, "earlier": 0.9}

    class Half(Examination):
        def score(self, model):
            origin = Origin("f")
            return {name: Recall((ProbeScore(origin, value, False, 1.0, 1),)) for name, value in scores.items()}

    figures = Half({name: [None] for name in scores}, {}, {}, 0.95).look(torch.nn.Identity())
    assert figures["kept"] == 0.9 and figures["cost"] == pytest.approx(1.1)


def test_anchor_and_pull_hold_what_the_start_was_and_not_the_bare_base(first, base, tmp_path):
    """At the first step nothing has moved: the divergence is 0, though the adapter is far from the base."""
    (tmp_path / "text.txt").write_text(notes.TEXTS["people.txt"])
    held = dict(anchor=1.0, anchor_text=tmp_path / "text.txt", update="recadam", pull=0.01)
    order = order_on(first, base, tmp_path, training={"epochs": 8}, **held)
    notes.learn(order, tmp_path / "run")
    drift = [event["anchor_kl"] for event in read_events(tmp_path / "run") if "anchor_kl" in event]
    assert drift[0] == pytest.approx(0, abs=1e-5) and drift[-1] > 1e-3


def test_the_run_ends_where_it_ends_after_an_interruption(first, base, tmp_path, monkeypatch):
    order = order_on(first, base, tmp_path, update="recadam", pull=0.01)
    whole = notes.learn(order, tmp_path / "whole")
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
    wanted = trainable_tensors(whole.model)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in trainable_tensors(again.model).items())


def test_an_adapter_of_another_form_is_refused_before_anything_is_loaded(first, base, tmp_path):
    other = order_on(first, base, tmp_path)
    wider = dataclasses.replace(other, tuner_settings=other.tuner.settings(rank=8))
    with pytest.raises(ConfigError, match="is of another form") as caught:
        DocumentLearner().read(wider)
    assert "recipe.yaml" in caught.value.action


def test_a_run_that_cannot_be_read_is_refused(first, base, tmp_path, caplog):
    (tmp_path / "bank").mkdir()
    with pytest.raises(AdapterError, match="holds no PEFT adapter"):
        EarlierRun.read(AdapterStart(first / "run", tmp_path / "bank"))
    adapter = first / "run" / "adapter"
    assert EarlierRun.read(AdapterStart(tmp_path, adapter)).learned == ()
    assert "learned nothing from documents" in caplog.text
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "recall.json").write_text('{"probes": {"own_words": [{"after": 1}]}}')
    with pytest.raises(AdapterError, match="cannot be read"):
        EarlierRun.read(AdapterStart(tmp_path, adapter))
