"""Plain text and a compressed model in, a verified bank of soft prompts out, which everything else can use."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import budwood
from budwood import _adapt, _chat, _inspect, _published
from budwood._request import Request
from budwood.cli._results import expected, measured
from budwood.errors import (
    AdapterError,
    BaseMismatchError,
    ConfigError,
    DataError,
    InterruptedRunError,
    NotSupportedError,
)
from budwood.export.checks import Check, VerifyReport
from budwood.methods.idp.bank import PromptBank
from budwood.reports.report import write_report
from budwood.run import verify_run
from budwood.training.folder import RunFolder
from tests import tiny
from tests.methods.idp import texts

FINE = VerifyReport((Check("left out of this test", True),))
QUICK = {f"training.{name}": value for name, value in texts.QUICK.items()} | {
    "training.dtype": "float32",
    "learner.window": 64,
    "learner.search": [],
    "tuner.tokens": 4,
}


def repair(base, files, out, **overrides) -> budwood.Run:
    return budwood.adapt(base, budwood.Repair(tuple(files)), out=out, overrides=QUICK | overrides, progress=False)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    return str(tiny.save(tiny.llama(), tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def made(base, tmp_path_factory) -> budwood.Run:
    """One run for the tests that only look; its verification, a process of its own, is the slow test's."""
    folder = tmp_path_factory.mktemp("repair")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_published, "verify", lambda *_, **__: FINE)
        run = repair(base, texts.write(folder), folder / "run")
    return run


def test_the_run_says_what_the_choice_gives(made):
    assert made.status["state"] == "done"
    choice = made.metrics["choice"]
    assert sum(choice["histogram"].values()) == choice["texts"] == 12
    nll = choice["nll"]
    assert nll["oracle"] <= nll["chosen"] and nll["oracle"] <= nll["best constant"] <= nll["random"]
    table = dict(measured({"run": made.path, **made.summary()})[1].rows)
    assert "chosen how often" in table and "None" not in " ".join(table.values())


def test_it_loads_generates_chats_and_evaluates(made, tmp_path):
    model, tokenizer = made.load()
    assert isinstance(model, PromptBank) and model.names == ["sea", "law", "food"]
    ids = torch.tensor([tokenizer("the court heard").input_ids])
    chosen = model.select(ids)
    assert model.generate(ids, selection=chosen, max_new_tokens=3).shape[1] <= ids.shape[1] + 3
    again = [_inspect.generate(made.path, "abc", max_new_tokens=4)["text"] for _ in range(2)]
    assert again[0] == again[1]
    talk = _chat.open_conversation(made.path, max_new_tokens=4)
    assert talk.ask("abc").text is not None and len(talk.messages) == 2
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": c, "completion": c * 3}) + "\n" for c in "abcd"))
    found = _inspect.evaluate(made.path, rows=rows, progress=False)
    assert found["rows"] == 4 and found["adapted"]["nll"] != found["base"]["nll"]


@pytest.mark.slow
def test_a_run_is_verified_and_verification_finds_what_has_changed(base, tmp_path):
    run = repair(base, texts.write(tmp_path), tmp_path / "run")
    assert run.metrics["verify"]["ok"]
    names = {check["name"] for check in run.metrics["verify"]["checks"]}
    assert {"prompt law: the same bits as the trained model", "scores: the same bits as the trained model"} <= names
    copy = tmp_path / "copy"
    shutil.copytree(run.adapter, copy)
    other = copy / "bank" / "sea" / "adapter_model.safetensors"
    shutil.copyfile(copy / "bank" / "law" / "adapter_model.safetensors", other)
    report = budwood.open_run(copy).verify()
    assert not report.ok and not report.checks[0].ok


def test_prompts_are_exported_and_nothing_else_is(made, tmp_path):
    result = made.export("prompts", tmp_path / "out")
    assert all(check.ok for check in result.checks) and "enable_prompt_embeds" in result.serve_lines["vLLM"]
    assert (tmp_path / "out" / "sea" / "adapter_config.json").is_file()
    for kind in ("lora", "gguf", "merged"):
        with pytest.raises(NotSupportedError, match="cannot become") as caught:
            made.export(kind, tmp_path / kind)
        assert "--to prompts" in caught.value.action and not (tmp_path / kind).exists()


def test_the_report_shows_prompts_and_histogram(made, tmp_path):
    page = write_report(made.path, tmp_path)["report"].read_text(encoding="utf-8")
    assert "Choice of a prompt" in page and "best constant" in page and "<td>law</td>" in page


def test_a_dry_run_tells_the_same_counts(base, made, tmp_path):
    files = texts.write(tmp_path)
    found = _adapt.preview(Request(base, budwood.Repair(tuple(files)), overrides=QUICK))
    assert found["trainable_params"] == made.metrics["trainable_params"] == 3 * 4 * 32
    assert found["steps"] == made.metrics["steps"] and found["rows"]["train_rows"] == 108
    assert expected(found)


def test_the_recipe_of_the_run_says_all_and_checks_it(base, made, tmp_path):
    recipe = (made.path / "recipe.yaml").read_text(encoding="utf-8")
    assert "name: idp" in recipe and "window: 64" in recipe
    with pytest.raises(ConfigError, match="did you mean 'window'"):
        repair(base, texts.write(tmp_path), tmp_path / "run", **{"learner.windw": 3})
    with pytest.raises(ConfigError, match="no settings of its own"):
        budwood.adapt(base, budwood.Examples(texts.write(tmp_path)[0]), overrides={"learner.window": 64})


def test_damage_is_named(made, base, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(made.adapter, copy)
    (copy / "bank" / "law" / "adapter_model.safetensors").write_bytes(b"broken")
    with pytest.raises(AdapterError, match="'law' is damaged"):
        budwood.open_run(copy).load()
    shutil.rmtree(copy / "bank" / "law")
    with pytest.raises(AdapterError, match="'law' is missing"):
        budwood.open_run(copy)
    (copy / "selector.json").write_text("{")
    with pytest.raises(AdapterError, match="cannot be read"):
        budwood.open_run(copy)


def test_damage_to_a_finished_run_fails_verification_and_names_the_repair(base, tmp_path, monkeypatch):
    monkeypatch.setattr(_published, "verify", lambda *_, **__: FINE)
    run = repair(base, texts.write(tmp_path, kinds=["sea", "law"]), tmp_path / "run").path
    for gone in ("selector.json", "bank/law", "bank/sea/adapter_model.safetensors", "budwood.json"):
        place = run / "adapter" / gone
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        report = verify_run(run)
        assert not report.ok
        note = report.checks[-1].note
        assert str(place) in note and f"budwood adapt --resume -o {run}" in note, note
        budwood.adapt(out=run, resume=True, progress=False)
        assert verify_run(run).ok


def test_an_interrupted_run_goes_on_to_the_same_bits(base, tmp_path, monkeypatch):
    monkeypatch.setattr(_published, "verify", lambda *_, **__: FINE)
    files = texts.write(tmp_path, kinds=["sea", "law"])
    whole = repair(base, files, tmp_path / "whole")
    append = RunFolder.append_event

    def stop(folder, event):
        append(folder, event)
        if (folder.path.name, event["step"]) == ("law", 1):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_event", stop)
        with pytest.raises(InterruptedRunError) as caught:
            repair(base, files, tmp_path / "run")
    assert f"--resume -o {tmp_path / 'run'}`" in caught.value.action
    resumed = budwood.adapt(out=tmp_path / "run", resume=True, progress=False)
    assert resumed.facts.adapter_sha256 == whole.facts.adapter_sha256
    assert resumed.metrics["choice"] == whole.metrics["choice"]
    folders = {path.name for path in resumed.path.iterdir() if not path.name.startswith(".")}
    assert folders == {
        "recipe.yaml", "status.json", "env.json", "events.jsonl", "metrics.json", "checkpoints", "adapter",
    }  # fmt: skip


def test_a_bank_that_was_saved_by_hand_opens_too(made, base, tmp_path):
    model, _ = made.load()
    model.save(tmp_path / "bank")
    opened = budwood.open_run(tmp_path / "bank", base=base)
    assert opened.facts is None and opened.load()[0].names == model.names
    assert opened.summary()["adapter_bytes"] > 0 and opened.summary()["tuner"] == "idp"


def test_another_base_is_refused(made, tmp_path):
    other = str(tiny.save(tiny.llama(seed=9), tmp_path / "other"))
    with pytest.raises(BaseMismatchError, match="was made on"):
        budwood.open_run(made.path, base=other)
    assert budwood.open_run(made.path, base=other, force=True).load()
    wider = str(tiny.save(tiny.llama(hidden_size=64), tmp_path / "wider"))
    with pytest.raises(BaseMismatchError, match="width 32"):
        budwood.open_run(made.path, base=wider, force=True).load()


def test_too_little_text_leaves_nothing_behind(base, tmp_path):
    with pytest.raises(DataError, match="windows"):
        repair(base, texts.write(tmp_path, sentences=3, kinds=["sea"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
