"""From documents to an adapter: what is trained, which epoch is published, what the run says about itself."""

from __future__ import annotations

import json

import pytest
import torch

from budwood.data.documents import read_documents
from budwood.errors import ConfigError, DataError, InterruptedRunError
from budwood.evals.recall import score_probes
from budwood.methods.taalm import learner as module
from budwood.methods.taalm.examination import Examination
from budwood.methods.taalm.learner import DocumentLearner
from budwood.storage import read_json
from budwood.training.folder import read_events
from tests import tiny
from tests.methods.taalm import notes


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save(tiny.llama(), tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def learned(base, tmp_path_factory):
    """A run of six epochs, and its folder."""
    place = tmp_path_factory.mktemp("learned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUDWOOD_CACHE", str(place / "cache"))
        return notes.learn(notes.order(base, notes.write(place / "notes")), place / "run"), place / "run"


def trained(model) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


def test_the_top_layer_learns_and_each_epoch_is_examined(learned, base):
    result, run = learned
    assert {name.split("layers.")[1][0] for name in trained(result.model)} == {"1"}
    looks = [event for event in read_events(run) if "recall/cost" in event]
    assert [look["step"] for look in looks] == [0, 2, 4, 6, 8, 10, 12]  # 4 windows, 2 a step
    nll = [look["recall/own_words_nll"] for look in looks]
    assert nll[-1] < nll[0] - 0.2
    assert result.metrics["best_step"] == min(looks[1:], key=lambda look: look["recall/cost"])["step"]
    assert result.metrics["best_evaluation_loss"] is None


def test_the_run_says_what_was_learned_with_the_published_adapter(learned):
    result, run = learned
    told = read_json(run / "documents" / "recall.json")
    assert told["learned_by"] == "other_words" and told["other_words"]["after"]["probes"] == 2
    answers = [probe["answer"] for probe in told["probes"]["own_words"]]
    assert "Heron" in answers and len(answers) == told["own_words"]["before"]["probes"]
    assert [point["epoch"] for point in told["curve"]] == [0, 1, 2, 3, 4, 5, 6]
    best = next(point for point in told["curve"] if point["epoch"] == told["best_epoch"])
    assert best["nll"] == pytest.approx(told["other_words"]["after"]["nll"], rel=1e-5)
    assert result.metrics["recall"].items() <= told.items()


def test_the_words_of_each_document_have_their_weights(learned, tmp_path):
    told = read_json(learned[1] / "documents" / "weights.json")
    assert told["origin"] == "rule: uniform"
    read = read_documents(notes.write(tmp_path / "notes")).documents
    assert [one["text"] for one in told["documents"]] == [document.text for document in read]
    for one in told["documents"]:
        covered = "".join(one["text"][start:stop] for start, stop, _ in one["weights"])
        assert "".join(covered.split()) == "".join(one["text"].split())
        assert {weight for _, _, weight in one["weights"]} <= {0.0, 1.0}  # 0 at a first byte, which nothing predicts


def test_a_resumed_run_ends_with_the_same_bits(base, tmp_path, monkeypatch):
    order = notes.order(base, notes.write(tmp_path / "notes"))
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
    assert all(torch.equal(value, trained(again.model)[name]) for name, value in trained(whole.model).items())
    assert again.metrics["recall"] == whole.metrics["recall"]


def test_what_the_base_knows_is_kept_and_found_only_once(base, tmp_path, monkeypatch):
    """A keep-set of which the base knows exactly one fact: the letter that it says itself after a prompt."""
    prompt, said = _known()
    facts = [
        {"topic": "t", "prompts": ["No", prompt], "object": said},
        {"topic": "t", "prompts": [prompt], "object": "QQQ"},
    ]
    folder = notes.write(tmp_path / "notes")
    (tmp_path / "keep.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    order = notes.order(base, folder, keep=0.95)
    first = notes.learn(order, tmp_path / "first")
    before = first.metrics["recall"]["keep"]["before"]
    assert (before["probes"], before["accuracy"]) == (1, 1)
    monkeypatch.setattr("budwood.methods.taalm.examination.known_facts", None)
    second = notes.learn(order, tmp_path / "second")
    assert first.metrics["recall"] == second.metrics["recall"]


def _known() -> tuple[str, str]:
    """Return a prompt and the letter with which the tiny base goes on after it."""
    model, tokenizer = tiny.llama(), tiny.tokenizer()
    for prompt in (f"The {word} of the north is" for word in "sky sea sun moon fish bird wind rain snow lamp".split()):
        logits = model(torch.tensor([tokenizer(f"{prompt} ")["input_ids"]])).logits
        said = tokenizer.decode([int(logits[0, -1].argmax())])
        if said.isascii() and said.isalnum():
            return prompt, said
    raise AssertionError("the base says no letter after any of these")


def test_older_text_is_rehearsed_with_uniform_weights(base, tmp_path):
    (tmp_path / "older.txt").write_text(
        "\n\n".join(f"An older sentence, number {n}, of some length." for n in range(9))
    )
    order = notes.order(base, notes.write(tmp_path / "notes"), rehearse=tmp_path / "older.txt", rehearse_share=0.5)
    lesson = DocumentLearner().read(order)
    assert len(lesson.notes.rehearsed) == len(lesson.notes.windows) == 4
    assert all(set(row.loss_weights) == {1.0} for row in lesson.notes.rehearsed if row.labels[0] != -100)
    assert lesson.outline().rows["train_rows"] == 8 and lesson.outline().steps == 24


def test_any_tuner_will_do(base, tmp_path):
    order = notes.order(base, notes.write(tmp_path / "notes"), tuner="gift", training={"epochs": 1})
    result = notes.learn(order, tmp_path / "run")
    assert result.parameters == DocumentLearner().read(order).outline().parameters > 0


def test_a_document_that_teaches_nothing_new_is_named(base, tmp_path, monkeypatch, caplog):
    """The base fills every blank where each answer is what it says anyway; here its scores are set so."""
    real = score_probes

    def all_right(model, rows, **options):
        found = real(model, rows, **options)
        return type(found)(tuple(type(one)(one.origin, 1.0, True, one.nll, one.tokens) for one in found.scores))

    monkeypatch.setattr("budwood.methods.taalm.examination.score_probes", all_right)
    order = notes.order(base, notes.write(tmp_path / "notes"), training={"epochs": 1})
    result = notes.learn(order, tmp_path / "run")
    assert caplog.text.count("teaches nothing new") == 2
    (remark,) = result.metrics["rows"]["remarks"]
    assert remark.startswith("teaches nothing new") and result.metrics["rows"]["remarks"][remark]["count"] == 2


def test_what_cannot_be_measured_is_refused_before_anything_is_loaded(base, tmp_path):
    (tmp_path / "short.txt").write_text("only of so few small words at the end")
    with pytest.raises(DataError, match="no blank can be made"):
        DocumentLearner().read(notes.order(base, tmp_path / "short.txt"))
    order = notes.order(base, notes.write(tmp_path / "notes"), top_layers=3)
    with pytest.raises(ConfigError, match="the top 3 of 2 layers"):
        DocumentLearner().read(order).outline()


def test_the_epoch_that_kept_most_is_published_where_none_kept_enough(base, tmp_path, monkeypatch, caplog):
    kept = iter([1.0, 0.5, 0.8, 0.7])
    monkeypatch.setattr(module.Examination, "look", lambda self, model: _figures(next(kept), self.keep))
    order = notes.order(base, notes.write(tmp_path / "notes"), training={"epochs": 3}, keep=0.95)
    result = notes.learn(order, tmp_path / "run")
    assert result.metrics["best_step"] == 4 and result.metrics["recall"]["best_epoch"] == 2
    assert not result.metrics["recall"]["kept_enough"] and "no epoch kept 95 %" in caplog.text


def _figures(kept: float, keep: float) -> dict[str, float]:
    from budwood.methods.taalm.examination import cost

    kinds = ("own_words", "other_words")
    learned = {f"{kind}_{figure}": 0.5 for kind in kinds for figure in ("accuracy", "exact", "nll")}
    return learned | {"keep_accuracy": kept, "kept": kept, "cost": cost(0.5, 0.5, kept, keep)}


def test_weights_come_before_the_adapter(base, tmp_path):
    """The scorer and the rules read the bare base, so the tuner changes no weight."""
    order = notes.order(base, notes.write(tmp_path / "notes"), weights="entropy", training={"epochs": 1})
    notes.learn(order, tmp_path / "lora")
    gift = notes.order(base, tmp_path / "notes", weights="entropy", training={"epochs": 1}, tuner="gift")
    notes.learn(gift, tmp_path / "gift")
    told = [(tmp_path / run / "documents" / "weights.json").read_text() for run in ("lora", "gift")]
    assert told[0] == told[1]
