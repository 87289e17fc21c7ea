"""Documents in, a verified adapter and a page out, with a scorer that was prepared, by the words of a command line."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import budwood
from budwood.cli._app import app
from budwood.methods.taalm import preparer
from budwood.methods.taalm.meta_training import Outcome
from tests.e2e.test_bad_input import failed
from tests.methods.taalm import notes
from tests.methods.taalm.test_preparer import write as write_corpus

NOTES = Path(__file__).parents[2] / "examples" / "notes"
QUICK = [
    "training.epochs=2",
    "training.batch_size=2",
    "training.dtype=float32",
    "learner.top_layers=1",
    "tuner.rank=4",
]
SET = [part for setting in QUICK for part in ("--set", setting)]


def cli(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_prepare_then_adapt_then_report(base, tmp_path, monkeypatch):
    monkeypatch.setattr(preparer, "train_on_importance", lambda *_: Outcome(0, "alignment", 1.0, 0.0))
    corpus, prior, run = write_corpus(tmp_path / "facts.jsonl"), tmp_path / "prior", tmp_path / "run"
    quick = ["--set", "longest=200", "--set", "top_layers=1"]
    made = cli("prepare", base, "taalm", "--corpus", corpus, "-o", prior, *quick, "--json")
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout)["alignment"] == 1.0
    folder = notes.write(tmp_path / "notes")
    keep = ["--set", f"learner.keep_set={tmp_path / 'keep.jsonl'}"]
    done = cli("adapt", base, "--documents", folder, "--prior", prior, "-o", run, *SET, *keep)
    assert done.exit_code == 0, done.stderr
    for words in ("memorised, own words", "learned, other words", "published", "verified"):
        assert words in done.stdout
    opened = budwood.open_run(run)
    assert opened.metrics["verify"]["ok"] and opened.facts.method == "taalm"
    assert json.loads((run / "documents" / "weights.json").read_text())["origin"] == "scorer: head, prior"
    assert cli("report", run).exit_code == 0
    page = (run / "report" / "index.html").read_text()
    assert "What it learned, and what it kept" in page and "What it looked at" in page


def test_without_a_scorer_the_way_out_is_said(base, tmp_path):
    """Nothing is made where a rule, a prior or a document does not exist."""
    folder = notes.write(tmp_path / "notes")
    bad = cli("adapt", base, "--documents", folder, "--weights", "uniformly", "-o", tmp_path / "run")
    failed(bad, 2, "learner.weights", "'uniform'")
    missing = cli("adapt", base, "--documents", folder, "--prior", tmp_path / "none", "-o", tmp_path / "run")
    failed(missing, 2, "holds no prior", "budwood prepare")
    failed(cli("adapt", base, "--documents", tmp_path / "nowhere", "-o", tmp_path / "run"), 2, "nowhere")
    assert not (tmp_path / "run").exists()


def test_a_dry_run_shows_the_rows_and_writes_nothing(base, tmp_path):
    folder = notes.write(tmp_path / "notes")
    result = cli(
        "adapt", base, "--documents", folder, "--weights", "uniform", "-o", tmp_path / "run", *SET, "--dry-run"
    )
    assert result.exit_code == 0 and "4 trained on" in result.stdout and not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.smollm2
def test_the_notes_of_the_example_on_smollm2(tmp_path):
    """As the README says it, with half the epochs and the scorer that ships: facts get likelier, most is kept."""
    start = time.monotonic()
    run = budwood.adapt(
        "smollm2",
        budwood.Documents(NOTES),
        out=tmp_path / "run",
        overrides={"training.epochs": 5},
        progress=False,
    )
    recall = run.metrics["recall"]
    assert recall["own_words"]["after"]["nll"] < recall["own_words"]["before"]["nll"] - 0.2
    assert recall["other_words"]["after"]["nll"] < recall["other_words"]["before"]["nll"]
    assert recall["keep"]["before"]["probes"] > 100 and recall["keep"]["after"]["accuracy"] > 0.8
    assert run.metrics["verify"]["ok"] and run.metrics["wall_s"] <= time.monotonic() - start
