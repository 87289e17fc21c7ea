"""`prepare` from the outside: what is refused at once, and what it leaves behind."""

from __future__ import annotations

import pytest

from budwood import _prepare
from budwood._prepare import PriorRequest, make_prior, outline_prior, prepare
from budwood.errors import ConfigError, DataError, InterruptedRunError, NotSupportedError, UsageError
from budwood.methods.taalm import preparer
from budwood.methods.taalm.meta_training import Outcome
from budwood.training.folder import read_status
from tests import tiny
from tests.methods.taalm.test_preparer import write

QUICK = {
    "longest": 200,
    "top_layers": 1,
    "stage.steps": 2,
    "stage.batch_size": 4,
    "body.kind": "head",
    "body.width": 4,
}


@pytest.fixture
def base(tmp_path) -> str:
    return str(tiny.save(tiny.llama(), tmp_path / "base"))


def test_a_prior_is_a_folder_with_the_files_of_a_run(base, tmp_path, monkeypatch):
    monkeypatch.setattr(preparer, "train_on_importance", lambda *_: Outcome(0, "alignment", 1.0, 0.0))
    corpus, out = write(tmp_path / "facts.jsonl"), tmp_path / "prior"
    request = PriorRequest(base, "taalm", (corpus,), overrides=QUICK, device="cpu")
    told = outline_prior(request, out)
    assert told["out"] == str(out) and not out.exists()
    made = prepare(base, "taalm", corpus=corpus, out=out, overrides=QUICK, device="cpu", progress=False)
    assert made.path == out and made.metrics["texts"] == told["texts"] and made.metrics["wall_s"] >= 0
    assert {"prior.json", "weights.safetensors", "status.json", "metrics.json"} <= {f.name for f in out.iterdir()}
    assert read_status(out)["state"] == "done"
    with pytest.raises(UsageError, match="finished"):
        make_prior(request, out)


def test_an_interruption_says_how_to_go_on(base, tmp_path, monkeypatch):
    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(preparer, "train_on_importance", stops)
    corpus = write(tmp_path / "facts.jsonl")
    with pytest.raises(InterruptedRunError) as caught:
        prepare(base, "taalm", corpus=corpus, out=tmp_path / "p", overrides=QUICK, device="cpu", progress=False)
    assert f"--corpus {corpus}" in str(caught.value) and "--set stage.steps=2" in str(caught.value)
    assert str(caught.value).rstrip("`").endswith(f"-o {tmp_path / 'p'} --resume")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"method": "gift"}, NotSupportedError, "needs no prior"),
        ({"method": "talm"}, UsageError, "taalm"),
        ({"corpus": "missing.jsonl"}, DataError, "missing.jsonl"),
        ({"overrides": {"stage.stepz": 3}}, ConfigError, "stepz"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(base, tmp_path, changes, error, said):
    given = {"method": "taalm", "corpus": write(tmp_path / "facts.jsonl")} | changes
    with pytest.raises(error, match=said):
        _prepare.prepare(base, given.pop("method"), out=tmp_path / "prior", **given)
    assert not (tmp_path / "prior").exists()
