"""A scorer from a corpus: it is made from J_t, judged on other texts, and published only where it is of use."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from budwood import peft
from budwood.data.synthetic import generate
from budwood.errors import DataError, TrainingError
from budwood.methods.taalm import preparer as module
from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.methods.taalm.meta_training import Outcome
from budwood.methods.taalm.preparation_settings import ScorerSettings
from budwood.methods.taalm.preparer import ScorerPreparer
from budwood.methods.taalm.prior import FACTS, load_prior, read_facts
from budwood.methods.taalm.weighting import find_prior
from budwood.models import load_base, locate
from budwood.training.checkpoints import trainable_tensors
from budwood.training.folder import RunFolder
from budwood.tuning.attach import attach
from budwood.tuning.lesson import AdapterStart
from budwood.tuning.prepared import Preparation
from budwood.tuning.registry import find_tuner
from tests import tiny
from tests.methods.taalm import cases

QUICK = {
    "longest": 200,
    "top_layers": 1,
    "body": {"kind": "head", "width": 4, "members": 1},
    "stage": {"steps": 6, "batch_size": 4, "validate_every": 2},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    return str(tiny.save(tiny.llama(), tmp_path_factory.mktemp("base")))


def write(path: Path, count: int = 24, seed: int = 0) -> Path:
    facts = [fact for fact in generate(8 * count, seed) if len(fact.evidence) < 150][:count]
    path.write_text("".join(json.dumps(fact.to_dict()) + "\n" for fact in facts))
    return path


def order(base: str, *corpus: Path, **settings) -> Preparation:
    peft.register()
    return Preparation(locate(base), corpus, ScorerSettings.model_validate(QUICK | settings), "cpu", 0)


def make(order: Preparation, place: Path, *, resume: bool = False) -> dict:
    folder = RunFolder(place)
    with folder.session(resume=resume):
        return ScorerPreparer().read(order).make(folder, progress=False)


@pytest.fixture
def always_better(monkeypatch):
    """Tiny random models teach nothing: let the training end as one that beat uniform weights."""
    real = module.train_on_importance

    def train(*arguments):
        done = real(*arguments)
        return Outcome(done.step, done.measure, done.uniform + 0.1, done.uniform)

    monkeypatch.setattr(module, "train_on_importance", train)


@pytest.mark.usefixtures("always_better")
def test_a_prior_is_made_that_documents_are_weighted_with(base, tmp_path):
    figures = make(order(base, write(tmp_path / "facts.jsonl")), tmp_path / "prior")
    assert figures["texts"] + figures["validation_texts"] + figures["dropped"] == 24
    assert figures["alignment"] == pytest.approx(figures["uniform"] + 0.1)
    loaded = load_base(locate(base), dtype="float32")
    scorer, facts = load_prior(tmp_path / "prior", loaded.model, fingerprint=loaded.source.fingerprint)
    assert facts.body.layers == (1,) and facts.judged["uniform"] == figures["uniform"]
    assert figures["parameters"] == sum(value.numel() for value in scorer.parameters())
    assert find_prior(DocumentSettings(prior=tmp_path / "prior"), loaded.source) == tmp_path / "prior"


@pytest.mark.usefixtures("always_better")
def test_an_interrupted_preparation_goes_on_and_ends_the_same(base, tmp_path, monkeypatch):
    chosen = order(base, write(tmp_path / "facts.jsonl"))
    make(chosen, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "write_prior", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        make(chosen, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / FACTS).exists()
    measured = module.measure

    def only_from_the_cache(model, *rest, **options):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr("budwood.methods.taalm.lessons._measured", None)
            return measured(model, *rest, **options)

    monkeypatch.setattr(module, "measure", only_from_the_cache)
    make(chosen, tmp_path / "stopped", resume=True)
    whole, again = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "stopped"))
    assert whole.keys() == again.keys() and all(torch.equal(value, again[name]) for name, value in whole.items())
    assert read_facts(tmp_path / "whole") == read_facts(tmp_path / "stopped")


def test_a_scorer_that_does_not_beat_uniform_is_not_published(base, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "train_on_importance", lambda *_: Outcome(0, "alignment", 0.02, 0.02))
    with pytest.raises(TrainingError, match="does not beat uniform"):
        make(order(base, write(tmp_path / "facts.jsonl")), tmp_path / "prior")
    assert not (tmp_path / "prior" / FACTS).exists()


def test_stage_two_follows_where_it_is_asked_for(base, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "train_on_importance", lambda *_: Outcome(0, "alignment", 1.0, 0.0))
    monkeypatch.setattr(module, "train_on_outcome", lambda *_: Outcome(3, "drop", 0.5, 0.1))
    figures = make(order(base, write(tmp_path / "facts.jsonl"), meta={"steps": 3}), tmp_path / "prior")
    assert (figures["drop"], figures["step"], figures["steps"]) == (0.5, 3, 9)


def test_rows_with_one_text_are_on_one_side_and_long_ones_are_left_out(base, tmp_path):
    rows = [{"document": f"Text {n // 2} of some words.", "question": f"{n}?", "answer": str(n)} for n in range(40)]
    rows.append({"document": "long " * 60, "question": "?", "answer": "x"})
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ready = ScorerPreparer().read(order(base, tmp_path / "pairs.jsonl"))
    train, judged = ({passage.text for passage in part.passages} for part in (ready.train, ready.validation))
    assert not train & judged and len(judged) == 3 and ready.dropped == 1
    assert ready.outline()["texts"] == len(ready.train) == 34


def test_a_file_of_its_own_may_judge(base, tmp_path):
    validation = write(tmp_path / "judge.jsonl", 5, seed=1)
    ready = ScorerPreparer().read(order(base, write(tmp_path / "facts.jsonl"), validation=validation))
    assert (len(ready.train), len(ready.validation)) == (24, 5)


def test_too_few_rows_are_refused(base, tmp_path):
    with pytest.raises(DataError, match="texts to train a scorer on"):
        ScorerPreparer().read(order(base, write(tmp_path / "facts.jsonl", 10)))


@pytest.mark.usefixtures("always_better")
def test_the_importance_may_be_measured_at_the_adapter_of_a_run(base, tmp_path, monkeypatch):
    """The parameters that θ starts from are the run's, and the head reads what enters the layers that it adapts."""
    lora = find_tuner("lora")
    adapted = attach(load_base(locate(base), dtype="float32").model, lora, lora.settings(rank=3, layers=[1]), seed=5)
    cases.stirred(adapted).save_pretrained(tmp_path / "run" / "adapter", save_embedding_layers=False)
    started, measured = [], module.measure

    def watched(model, *rest, **options):
        started.append(trainable_tensors(model))
        return measured(model, *rest, **options)

    monkeypatch.setattr(module, "measure", watched)
    start = AdapterStart(tmp_path / "run", tmp_path / "run" / "adapter")
    fresh = order(base, write(tmp_path / "facts.jsonl"))
    make(dataclasses.replace(fresh, start=start), tmp_path / "prior")
    wanted = trainable_tensors(adapted)
    assert started[0].keys() == wanted.keys() and all(torch.equal(started[0][name], wanted[name]) for name in wanted)
    assert read_facts(tmp_path / "prior").body.layers == (1,)
