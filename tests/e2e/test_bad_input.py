"""Bad input gives the right exit code and a message with the way out; no traceback, and nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

import budwood
from budwood.cli._app import app
from tests.e2e.conftest import QUICK, write_rows

SETTINGS = [part for name, value in QUICK.items() for part in ("--set", f"{name}={value}")]
Cli = Callable[..., Result]


@pytest.fixture
def cli() -> Cli:
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def adapt(cli: Cli, base: str, tmp_path: Path) -> Cli:
    return lambda rows, *words: cli("adapt", base, "--examples", rows, "-o", tmp_path / "run", *SETTINGS, *words)


def failed(result: Result, code: int, *texts: str) -> None:
    """Hold a failure to what every failure owes its user."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output and "bug of budwood" not in result.output
    assert result.stdout == ""
    for text in texts:
        assert text in result.stderr, result.stderr


GOOD = '{"prompt": "a", "completion": "aaa"}\n'
FILES = {
    "empty": ("", "rows.jsonl"),
    "broken line": (GOOD + '{"prompt": "b", \n', "rows.jsonl, line 2"),
    "no object": (GOOD + "[1, 2]\n", "rows.jsonl, line 2"),
    "wrong field": (GOOD + '{"prompt": "b", "complettion": "bbb"}\n', "completion"),
    "wrong type": (GOOD + '{"prompt": "b", "completion": 3}\n', "completion"),
    "empty answer": (GOOD + '{"prompt": "b", "completion": ""}\n', "rows.jsonl, line 2"),
    "no answer": ('{"messages": [{"role": "user", "content": "a"}]}\n', "rows.jsonl, line 1"),
    "nothing learned": ('{"prompt": "a", "completion": "b", "weight": 0}\n', ""),
    "not text": ("\x00\x01\x02", "rows.jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_rows_that_cannot_be_used(adapt, tmp_path, name: str):
    content, text = FILES[name]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(content)
    failed(adapt(rows), 2, text)
    assert not (tmp_path / "run").exists()


def test_all_bad_rows_are_told_and_the_next_try_is_not_hidden(adapt, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(GOOD + "broken\n" + '{"prompt": "b"}\n')
    for _ in range(2):
        failed(adapt(rows), 2, "2 problems in the data", "rows.jsonl, line 2", "rows.jsonl, line 3")


def test_a_setting_that_fails_late_does_not_hide_the_next_message(adapt, rows):
    for _ in range(2):
        failed(adapt(rows, "--set", "tuner.rank=64"), 2, "rank 64 is larger than the width 32")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_place_that_cannot_be_written(cli, base, rows):
    failed(cli("adapt", base, "--examples", rows, "-o", "/proc/x"), 2, "could not make the folder /proc/x")


def test_missing_rows(adapt, tmp_path):
    failed(adapt(tmp_path / "nowhere.jsonl"), 2, "nowhere.jsonl")


def test_rows_that_are_all_too_long(adapt, rows):
    failed(adapt(rows, "--set", "data.max_length=4"), 2, "max_length")


@pytest.mark.parametrize(
    ("setting", "texts"),
    [
        ("trainin.epochs=1", ["there is no setting 'trainin'", "training"]),
        ("training.epoch=1", ["training.epoch", "did you mean 'epochs'"]),
        ("tuner.rnk=1", ["tuner.rnk", "did you mean 'rank'"]),
        ("data.max_lenght=9", ["did you mean 'max_length'"]),
        ("training.epochs=-1", ["training.epochs = -1"]),
        ("training.batch_size=many", ["training.batch_size"]),
        ("tuner.targets=[q,qq]", ["'qq'"]),
        ("tuner.rank=64", ["rank 64 is larger than the width 32"]),
        ("tuner.share=[[q,down]]", ["acts on different sides"]),
        ("tuner.name=gfit", ["did you mean 'gift'"]),
        ("model=x", ["model"]),
    ],
)
def test_settings_that_cannot_be(adapt, rows, setting: str, texts: list[str]):
    if setting == "model=x":  # the argument wins over --set
        assert adapt(rows, "--set", setting, "--dry-run").exit_code == 0
        return
    failed(adapt(rows, "--set", setting), 2, *texts)


def test_words_that_do_not_exist(cli, adapt, base, rows, tmp_path):
    failed(adapt(rows, "--method", "gfit"), 2, "did you mean 'gift'")
    failed(adapt(rows, "--tuner", "loar"), 2, "did you mean 'lora'")
    failed(adapt(rows, "--recipe", tmp_path / "no.yaml"), 2, "there is no recipe")
    (tmp_path / "bad.yaml").write_text("training: [epochs")
    failed(adapt(rows, "--recipe", tmp_path / "bad.yaml"), 2, "is not YAML")
    (tmp_path / "parent.yaml").write_text("extends: papr_qv")
    failed(adapt(rows, "--recipe", tmp_path / "parent.yaml"), 2, "did you mean 'paper_qv'")
    failed(cli("adapt", tmp_path / "nothing", "--examples", rows, "-o", tmp_path / "run"), 2)
    failed(cli("adapt", base, "-o", tmp_path / "run"), 2, "--examples")
    failed(cli("verify", tmp_path), 2, "adapter")


def test_an_instruction_has_no_method_yet(cli, base, tmp_path):
    failed(cli("adapt", base, "--instruction", "Do it.", "-o", tmp_path / "run"), 2, "'instruction'")
    assert not (tmp_path / "run").exists()


def test_json_errors_are_one_object(cli, base, tmp_path):
    result = cli("adapt", base, "--examples", tmp_path / "no.jsonl", "--json")
    error = json.loads(result.stdout)["error"]
    assert result.exit_code == 2 == error["exit_code"] and error["type"].endswith("Error") and error["got"]


@pytest.mark.usefixtures("unverified")
def test_a_full_disk_stops_the_run_with_3_and_it_goes_on_when_there_is_room(adapt, rows, tmp_path, monkeypatch):
    replace, calls = os.replace, []

    def full(source, target, **kwargs):
        if "checkpoints" in str(target):
            calls.append(target)
            if len(calls) > 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(source, target, **kwargs)

    monkeypatch.setattr(os, "replace", full)
    failed(adapt(rows), 3, "the disk is full")
    monkeypatch.undo()
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed" and status["exit_code"] == 3 and status["error"]["type"] == "StorageError"


@pytest.mark.slow
def test_a_failed_verification_exits_with_4_and_publishes_nothing(adapt, rows, tmp_path, monkeypatch):
    from budwood import facts

    save = facts.save

    def damaged(folder, *args):
        save(folder, *args)
        path = folder / "adapter_model.safetensors"
        save_file({name: tensor * 1.01 for name, tensor in load_file(path).items()}, path)

    monkeypatch.setattr(facts, "save", damaged)
    failed(adapt(rows), 4, "logits equal the trained model's")
    assert not (tmp_path / "run" / "adapter").exists()
    assert budwood_status(tmp_path / "run") == "failed"


@pytest.mark.usefixtures("unverified")
def test_a_loss_that_is_not_finite_exits_with_3(adapt, rows, tmp_path):
    failed(adapt(rows, "--set", "training.learning_rate=1e30", "--set", "training.max_grad_norm=0"), 3, "nan")
    assert budwood_status(tmp_path / "run") == "failed"


@pytest.mark.usefixtures("unverified")
class TestFoldersThatAreNotRight:
    @pytest.fixture
    def run(self, adapt, rows, tmp_path) -> Path:
        assert adapt(rows).exit_code == 0
        return tmp_path / "run"

    def test_prefix(self, cli, run):
        path = run / "adapter" / "adapter_model.safetensors"
        stored = load_file(path)
        save_file({name.replace("base_model.", "model."): tensor for name, tensor in stored.items()}, path)
        result = cli("verify", run)
        assert result.exit_code == 4 and "it loads" in result.output
        failed(cli("generate", run, "--prompt", "a"), 2)

    @pytest.mark.slow
    def test_changed_after_publication(self, cli, run):
        path = run / "adapter" / "adapter_model.safetensors"
        save_file({name: tensor + 0.01 for name, tensor in load_file(path).items()}, path)
        result = cli("verify", run, "--native-only")
        assert result.exit_code == 4 and "the weights are those that were published" in result.output

    def test_truncated(self, cli, run):
        path = run / "adapter" / "adapter_model.safetensors"
        path.write_bytes(path.read_bytes()[:200])
        failed(cli("generate", run, "--prompt", "a"), 2, "adapter_model.safetensors")

    def test_no_weights_but_a_pickle(self, cli, run):
        path = run / "adapter" / "adapter_model.safetensors"
        path.rename(path.with_name("adapter_model.bin"))
        failed(cli("export", run, "--to", "lora", "-o", run / "x"), 2, "pickle")

    def test_facts(self, cli, run):
        (run / "adapter" / "budwood.json").write_text("{")
        for damage in (lambda path: path.write_text("{"), Path.unlink):
            damage(run / "adapter" / "budwood.json")
            result = cli("verify", run)
            assert result.exit_code == 4 and "budwood.json" in result.output
            assert f"adapt --resume -o {run}" in result.output
            failed(cli("generate", run, "--prompt", "a"), 2, "budwood.json", f"adapt --resume -o {run}")

    @pytest.mark.parametrize("gone", ["adapter", "adapter/adapter_config.json", "adapter/adapter_model.safetensors"])
    def test_what_is_missing_is_named_and_repaired(self, cli, run, gone):
        remove = shutil.rmtree if gone == "adapter" else Path.unlink
        remove(run / gone)
        report = cli("verify", run, "--json")
        assert report.exit_code == 4 and json.loads(report.stdout)["ok"] is False
        note = json.loads(report.stdout)["checks"][-1]["note"]
        assert Path(gone).name in note and f"budwood adapt --resume -o {run}" in note and "no adapter yet" not in note
        assert cli("adapt", "--resume", "-o", run).exit_code == 0
        assert cli("verify", run, "--native-only").exit_code == 0

    def test_an_adapter_without_its_run_has_nothing_to_be_made_again_from(self, cli, run, tmp_path):
        alone = tmp_path / "alone"
        shutil.copytree(run / "adapter", alone)
        (alone / "adapter_config.json").unlink()
        result = cli("verify", alone)
        assert result.exit_code == 4 and "adapter_config.json" in result.output and "--resume" not in result.output

    def test_what_never_was_an_adapter_is_no_damage(self, cli, tmp_path):
        failed(cli("verify", tmp_path), 2, "holds no adapter")
        failed(cli("verify", tmp_path / "nowhere"), 2, "does not exist")

    def test_an_export_of_another_kind_names_the_right_one(self, cli, base, run, rows, tmp_path):
        failed(cli("export", run, "--to", "prompts", "-o", tmp_path / "x"), 2, "budwood export --to lora")
        quick = ["--method", "prompt", "--set", "tuner.tokens=2", "--set", "training.max_steps=1"]
        prompt = tmp_path / "prompt"
        assert cli("adapt", base, "--examples", rows, "-o", prompt, *quick).exit_code == 0
        failed(cli("export", prompt, "--to", "lora", "-o", tmp_path / "x"), 2, "budwood export --to prompts")

    def test_export_to_a_place_that_is_taken(self, cli, run, rows):
        for place in (run, run / "adapter", run.parent):
            failed(cli("export", run, "--to", "lora", "-o", place, "--force"), 2, "holds the adapter")
        (run.parent / "mine").mkdir()
        (run.parent / "mine" / "precious.txt").touch()
        failed(cli("export", run, "--to", "lora", "-o", run.parent / "mine", "--force"), 2, "no earlier export")
        failed(cli("export", run, "--to", "lora", "-o", run.parent / "mine"), 2, "no earlier export")
        assert (run / "adapter" / "adapter_config.json").exists() and (run.parent / "mine" / "precious.txt").exists()
        failed(cli("export", run, "--to", "onnx", "-o", run / "x"), 2)

    def test_evaluating_on_nothing(self, cli, run, tmp_path):
        failed(cli("eval", run, "--rows", write_rows(tmp_path / "none.jsonl", [])), 2, "none.jsonl")


def budwood_status(run: Path) -> str:
    return str(json.loads((run / "status.json").read_text())["state"])


def test_the_api_raises_what_the_command_prints(base, tmp_path):
    with pytest.raises(budwood.BudwoodError) as caught:
        budwood.adapt(base, budwood.Examples(tmp_path / "no.jsonl"), out=tmp_path / "run")
    assert caught.value.exit_code == 2 and not (tmp_path / "run" / "adapter").exists()
