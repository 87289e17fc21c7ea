"""New documents on top of an earlier run, and what keeps old knowledge, by the words of a command line."""

from __future__ import annotations

import json

import pytest

import budwood
from budwood.recipe import load
from tests import tiny
from tests.e2e.test_bad_input import failed
from tests.e2e.test_documents import SET, cli
from tests.methods.taalm import notes

NEW = "The harbour master of the town is Wilhelmina Oake. She was chosen in the autumn of 1987."
UNIFORM = ["--weights", "uniform"]


@pytest.fixture
def first(base, tmp_path, unverified):
    folder = notes.write(tmp_path / "notes")
    done = cli("adapt", base, "--documents", folder, *UNIFORM, "-o", tmp_path / "first", *SET, *keep(tmp_path))
    assert done.exit_code == 0, done.stderr
    return tmp_path / "first"


def keep(tmp_path):
    return ["--set", f"learner.keep_set={tmp_path / 'keep.jsonl'}"]


def new(tmp_path):
    (tmp_path / "new.txt").write_text(NEW)
    return tmp_path / "new.txt"


def test_a_second_run_goes_on_from_the_first_with_its_base_and_its_tuner(first, base, tmp_path):
    account = json.loads((first / "documents" / "recall.json").read_text())
    for probe in account["probes"]["own_words"][:1]:  # two epochs teach nothing: say that they did
        probe["after"] = 1
    (first / "documents" / "recall.json").write_text(json.dumps(account))
    quick = ["--set", "training.epochs=1", "--set", "training.dtype=float32"]
    words = ["--documents", new(tmp_path), "--base-run", first, *UNIFORM, "-o", tmp_path / "second"]
    done = cli("adapt", *words, *quick, *keep(tmp_path))
    assert done.exit_code == 0, done.stderr
    recipe = load(tmp_path / "second" / "recipe.yaml")
    assert recipe.model == base and recipe.tuner == load(first / "recipe.yaml").tuner
    assert recipe.learner.base_run == first and recipe.learner.top_layers == 1
    assert budwood.open_run(tmp_path / "second").summary()["trainable_params"] > 0
    resumed = cli("adapt", "-o", tmp_path / "second", "--resume")
    assert resumed.exit_code == 0, resumed.stderr


def test_a_run_on_another_base_or_of_another_form_is_refused(first, base, tmp_path):
    other = tiny.save(tiny.llama(seed=1), tmp_path / "other")
    words = ["--documents", new(tmp_path), "--base-run", first, *UNIFORM, "-o", tmp_path / "second"]
    failed(cli("adapt", other, *words), 2, "the adapter was made on", "the same weights")
    failed(cli("adapt", *words, "--tuner", "gift"), 2, "is of another form", "recipe.yaml")
    failed(cli("adapt", base, *words, "--base-run", tmp_path / "none"), 2, "does not exist")
    failed(cli("adapt", base, "--examples", new(tmp_path), "--base-run", first), 2, "--base-run")
    assert not (tmp_path / "second").exists()


def test_the_update_and_the_anchor_are_settings_of_a_run(base, tmp_path, unverified):
    folder, older = notes.write(tmp_path / "notes"), tmp_path / "older.txt"
    older.write_text("An older sentence of some length.\n\nAnd one more of them, as long as that.")
    words = ["--documents", folder, *UNIFORM, "--rehearse", older, "--update", "recadam", *SET, *keep(tmp_path)]
    more = ["--set", "learner.anchor=1", "--set", "learner.review=older", "--set", "learner.pull=1"]
    done = cli("adapt", base, *words, *more, "-o", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.stderr
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert all({"anchor_kl", "reviewed_rows"} <= event.keys() for event in events if "loss" in event)
    failed(cli("adapt", base, *words, "--update", "recadom", "-o", tmp_path / "bad"), 2, "learner.update", "'recadam'")
    failed(cli("adapt", base, *words, "--tuner", "ia3", "-o", tmp_path / "bad"), 2)
    pulled = [*words, "--set", "learner.pull=1e9", "-o", tmp_path / "strong"]
    failed(cli("adapt", base, *pulled), 2, "overshoots", "learner.pull=")
