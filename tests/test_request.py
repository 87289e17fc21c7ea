"""A request: what is missing, what is not evidence, and what a resumed run agrees to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import budwood
from budwood import recipe
from budwood._adapt import preview
from budwood._request import Request
from budwood.errors import ConfigError, DataError, UsageError
from budwood.evidence import Examples, Instruction
from budwood.storage import write_json, write_text


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    return tmp_path / "rows.jsonl"


@pytest.fixture
def run(tmp_path: Path, rows: Path) -> Path:
    """A run that was interrupted, as far as its recipe and its status go."""
    asked = Request("smollm2", Examples(rows), seed=3, overrides={"training.epochs": 2, "tuner.rank": 8})
    write_text(tmp_path / "run" / "recipe.yaml", asked.resolve().to_yaml())
    write_json(tmp_path / "run" / "status.json", {"state": "interrupted", "exit_code": 130})
    return tmp_path / "run"


def test_a_recipe_stands_alone_and_arguments_win(tmp_path, rows):
    file = tmp_path / "r.yaml"
    file.write_text(f"model: org/base\nevidence: {{kind: examples, paths: [{rows}]}}\nmethod: lora\nseed: 4\n")
    made = Request(recipe=file).resolve()
    assert (made.model, made.evidence.paths, made.method, made.seed) == ("org/base", (rows,), "lora", 4)
    other = Request("smollm2", method="gift", seed=5, recipe=file, overrides={"training.epochs": 7}).resolve()
    assert (other.model, other.method, other.seed, other.training.epochs) == ("smollm2", "gift", 5, 7)


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        (Request(), UsageError, "no model"),
        (Request("smollm2"), UsageError, "no evidence"),
        (Request(evidence=Examples("rows.jsonl")), UsageError, "no model"),
        (Request("smollm2", Examples("no.jsonl")), DataError, r"no\.jsonl: there is no such file"),
        (Request("smollm2", Examples("data/no.jsonl")), DataError, r"data/no\.jsonl: there is no such file"),
    ],
)
def test_what_is_missing_is_said(asked, error, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text) as caught:
        asked.resolve()
    assert caught.value.exit_code == 2


def test_a_missing_evaluation_file_is_said(rows, tmp_path):
    asked = Request("smollm2", Examples(rows), overrides={"data.evaluation_file": str(tmp_path / "held.jsonl")})
    with pytest.raises(DataError, match=r"held\.jsonl"):
        asked.resolve()


def test_a_hub_dataset_may_be_in_a_cache():
    assert Request("smollm2", Examples("owner/name:train")).resolve().evidence.paths == (Path("owner/name:train"),)


@pytest.mark.parametrize("evidence", ["rows.jsonl", Path("rows.jsonl")])
def test_a_path_is_no_evidence_yet(evidence):
    with pytest.raises(UsageError, match=r"bw\.Examples\('rows\.jsonl'\)"):
        budwood.adapt("smollm2", evidence)
    with pytest.raises(UsageError, match=r"bw\.Examples"):
        Request("smollm2", ["rows.jsonl"])  # type: ignore[arg-type]


def test_names_rows_or_only_a_kind():
    assert Request("m", Examples("a")).names_rows() and Request("m", Instruction("Do it.")).names_rows()
    assert not Request("m").names_rows()
    assert not Request("m", overrides={"evidence.kind": "examples"}).names_rows()
    assert not Request("m", overrides={"evidence": 3}).names_rows()


def test_a_run_is_resumed_by_its_own_recipe(run, rows):
    wanted = recipe.load(run / "recipe.yaml")
    assert Request().resumed(run) == wanted
    agreeing = Request("smollm2", Examples(rows), seed=3, overrides={"tuner.rank": 8})
    assert agreeing.resumed(run) == wanted


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        (Request(seed=4), r"-seed: 3; \+seed: 4"),
        (Request("other"), r"-model: smollm2; \+model: other"),
        (Request(overrides={"training.epochs": 3}), r"-  epochs: 2\.0; \+  epochs: 3\.0"),
        (Request(recipe="paper_qv"), r"\+  rank: 16"),
    ],
)
def test_arguments_that_disagree_with_the_run_are_named(run, asked, difference):
    with pytest.raises(ConfigError, match=difference):
        asked.resumed(run)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"resume": True}, "without the run to go on with"),
        ({"resume": True, "force": True, "out": "run"}, "--resume together with --force"),
        ({"resume": True, "out": "nowhere"}, "no run to resume"),
        ({"out": "run"}, r"`budwood adapt --resume -o run`"),
    ],
)
def test_folders_are_looked_at_before_anything_is_loaded(run, rows, options, text, monkeypatch):
    monkeypatch.chdir(run.parent)
    with pytest.raises(UsageError, match=text):
        preview(Request("smollm2", Examples(rows)), **options)


MISTAKES = {
    "exclusive flags": ["adapt", "smollm2", "--examples", "a", "--repair", "b"],
    "missing file": ["adapt", "smollm2", "--examples", "no.jsonl"],
    "bad setting": ["adapt", "smollm2", "--examples", "rows.jsonl", "--set", "epochs"],
    "unknown setting": ["adapt", "smollm2", "--examples", "rows.jsonl", "--set", "training.epoch=1"],
    "unknown method": ["adapt", "smollm2", "--examples", "rows.jsonl", "--method", "gfit"],
    "unknown preset": ["adapt", "smollm2", "--examples", "rows.jsonl", "--recipe", "papr_qv"],
    "no run": ["adapt", "--resume", "-o", "nowhere"],
    "a flag for later": ["adapt", "smollm2", "--examples", "rows.jsonl", "--prior", "p"],
    "plan": ["plan", "smollm2", "--examples", "rows.jsonl", "--method", "gfit"],
}


@pytest.mark.parametrize("words", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_before_torch_is_loaded(rows, words):
    script = f"import sys; sys.argv[1:] = {words!r}; from budwood.cli import main\ntry: main()\nfinally: "
    script += "print([name for name in ('torch', 'transformers', 'peft') if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=rows.parent)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.endswith("[]\n"), done.stderr


@pytest.mark.parametrize("kind", ["documents", "repair"])
def test_a_recipe_that_names_no_evidence_is_told_what_it_lacks(kind):
    with pytest.raises(UsageError) as raised:
        Request("smollm2", recipe=kind).resolve()
    assert raised.value.got == f"the recipe {kind} names no evidence, and none was given"
    assert raised.value.wanted.startswith(f"--{kind} ")
    assert f"budwood adapt smollm2 --recipe {kind} --{kind} " in raised.value.action
    assert "--examples" not in str(raised.value)
    with pytest.raises(UsageError, match="names no model") as raised:
        Request(recipe=kind).resolve()
    assert f"--recipe {kind} --{kind} " in raised.value.action
