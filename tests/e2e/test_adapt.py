"""The whole story on a tiny model: examples in, a verified adapter out, exported, measured, used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import budwood
from budwood import _adapt, _inspect, _published, recipe
from budwood._request import Request
from budwood.cli._results import measured
from budwood.errors import BaseMismatchError, ConfigError, InterruptedRunError, NotSupportedError, UsageError
from budwood.export.checks import Check, VerifyReport
from budwood.reports.shortfall import shortfall
from budwood.training.folder import RunFolder, read_events
from tests import tiny
from tests.e2e.conftest import QUICK


def adapt(base: str, rows: Path, out: Path, **changes: object) -> budwood.Run:
    arguments: dict = {"out": out, "seed": 0, "overrides": QUICK, "progress": False} | changes
    return budwood.adapt(base, budwood.Examples(rows), **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gift", "lora"])
def test_from_examples_to_a_portable_lora(base, rows, tmp_path, method):
    run = adapt(base, rows, tmp_path / "run", method=method)
    assert run.status["state"] == "done" and run.status["exit_code"] == 0
    assert run.metrics["verify"]["ok"] and run.metrics["trainable_params"] > 0
    model, tokenizer = run.load()
    plain = tiny.llama()
    ids = torch.tensor([tokenizer("abc").input_ids])
    with torch.no_grad():
        adapted = model(input_ids=ids).logits
        assert not torch.equal(adapted, plain(input_ids=ids).logits)
    result = run.export("lora", tmp_path / "lora")
    assert (tmp_path / "lora" / "README.md").exists() and "vllm serve" in json.dumps(result.to_dict())
    exported = budwood.open_run(tmp_path / "lora", base=base)
    with torch.no_grad():
        assert (exported.load(dtype="float32")[0](input_ids=ids).logits - adapted).abs().max() < 1e-5
    assert exported.verify().ok
    names = {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")}
    assert names == {
        "recipe.yaml", "status.json", "env.json", "events.jsonl", "metrics.json", "checkpoints", "adapter",
    }  # fmt: skip


@pytest.mark.usefixtures("unverified")
class TestWithoutAFreshProcess:
    def test_measures_and_generates(self, base, rows, tmp_path):
        run = adapt(base, rows, tmp_path / "run")
        found = _inspect.evaluate(run.path, rows=rows, progress=False)
        assert found["rows"] == 20
        assert set(found["adapted"]) == set(found["base"]) >= {"nll", "exact_match", "rouge_l"}
        assert found["adapted"]["nll"] < found["base"]["nll"]
        losses = run.metrics["base_evaluation_loss"], run.metrics["best_evaluation_loss"]
        assert losses[0] > losses[1] and shortfall(run.metrics) is None
        made = _inspect.generate(run.path, "a", max_new_tokens=5)
        assert made["tokens"] <= 5 and made == made | _same(run.path)

    def test_the_base_beside_a_soft_prompt_is_the_base_without_it(self, base, rows, tmp_path):
        quick = {name: value for name, value in QUICK.items() if name != "tuner.rank"} | {"tuner.tokens": 2}
        prompt = adapt(base, rows, tmp_path / "prompt", method="prompt", overrides=quick)
        gift = adapt(base, rows, tmp_path / "gift")
        assert prompt.metrics["base_evaluation_loss"] == pytest.approx(gift.metrics["base_evaluation_loss"])
        assert prompt.metrics["base_evaluation_loss"] != read_events(prompt.path)[0]["eval_loss"]

    def test_the_recipe_of_a_run_makes_it_again_bit_for_bit(self, base, rows, tmp_path):
        first = adapt(base, rows, tmp_path / "first")
        again = adapt(
            base, rows, tmp_path / "again", recipe=tmp_path / "first" / "recipe.yaml", overrides={}, seed=None
        )
        assert _tensors(first) == _tensors(again)
        assert recipe.load(first.path / "recipe.yaml") == recipe.load(again.path / "recipe.yaml")
        other = adapt(base, rows, tmp_path / "other", seed=1)
        assert _tensors(other) != _tensors(first)

    def test_a_dry_run_writes_nothing(self, base, rows, tmp_path):
        before = sorted(tmp_path.rglob("*"))
        asked = Request(base, budwood.Examples(rows), overrides=QUICK)
        plan = _adapt.preview(asked, out=tmp_path / "run")
        assert plan["steps"] == 10 and plan["trainable_params"] == 7 * 2 * 32 * 4
        assert plan["comparison"][1]["parameters"] > plan["trainable_params"]
        assert sorted(tmp_path.rglob("*")) == before

    def test_a_finished_run_is_kept_unless_forced(self, base, rows, tmp_path):
        adapt(base, rows, tmp_path / "run")
        with pytest.raises(UsageError, match="finished run"):
            adapt(base, rows, tmp_path / "run")
        adapt(base, rows, tmp_path / "run", force=True)

    def test_a_recipe_alone_is_enough(self, base, rows, tmp_path):
        first = adapt(base, rows, tmp_path / "first")
        file = tmp_path / "r.yaml"
        file.write_text((first.path / "recipe.yaml").read_text(encoding="utf-8"), encoding="utf-8")
        again = budwood.adapt(recipe=file, out=tmp_path / "again", progress=False)
        assert _tensors(first) == _tensors(again)

    def test_a_run_is_resumed_by_its_own_recipe(self, base, rows, tmp_path, monkeypatch):
        whole = adapt(base, rows, tmp_path / "whole")
        append = RunFolder.append_event

        def stop(folder, event):
            append(folder, event)
            if event["step"] == 4:
                raise KeyboardInterrupt

        monkeypatch.setattr(RunFolder, "append_event", stop)
        with pytest.raises(InterruptedRunError) as caught:
            adapt(base, rows, tmp_path / "run")
        assert f"`budwood adapt --resume -o {tmp_path / 'run'}`" in caught.value.action
        monkeypatch.undo()
        monkeypatch.setattr(_published, "verify", lambda *_, **__: VerifyReport((Check("left out", True),)))
        resumed = budwood.adapt(out=tmp_path / "run", resume=True, progress=False)
        assert _tensors(resumed) == _tensors(whole) and resumed.metrics["steps"] == whole.metrics["steps"]

    def test_nothing_published_is_for_its_owner_only(self, base, rows, tmp_path):
        run = adapt(base, rows, tmp_path / "run")
        (tmp_path / "plain").touch()
        modes = {path.name: path.stat().st_mode for path in run.adapter.rglob("*") if path.is_file()}
        assert set(modes.values()) == {(tmp_path / "plain").stat().st_mode}, modes

    def test_a_summary_and_a_card_say_nothing_twice_and_nothing_raw(self, base, rows, tmp_path):
        run = adapt(base, rows, tmp_path / "run")
        assert "trainable_params" in run.summary() and "trainable_parameters" not in run.summary()
        assert "{" not in (run.adapter / "README.md").read_text(encoding="utf-8").partition("```")[0]
        (head, table), checks = measured({"run": run.path, **run.summary()}), run.summary()["verify"]["checks"]
        assert str(run.path) in str(head) and len(table.rows) <= 9 and checks

    def test_a_warm_up_that_is_cut_is_said(self, base, rows, tmp_path, caplog):
        with caplog.at_level("INFO", logger="budwood"):
            _adapt.preview(Request(base, budwood.Examples(rows), overrides={"training.max_steps": 4}))
        assert "training.warmup_steps is cut to 2: at most half of the 4 steps" in caplog.text

    def test_resuming_with_another_recipe_is_refused(self, base, rows, tmp_path):
        adapt(base, rows, tmp_path / "run")
        with pytest.raises(ConfigError, match="another recipe"):
            adapt(base, rows, tmp_path / "run", resume=True, seed=5)

    def test_another_base_is_refused_unless_forced(self, base, rows, tmp_path):
        run = adapt(base, rows, tmp_path / "run")
        other = str(tiny.save(tiny.llama(seed=9), tmp_path / "other"))
        with pytest.raises(BaseMismatchError, match="was made on"):
            budwood.open_run(run.path, base=other)
        assert budwood.open_run(run.path, base=other, force=True).load()

    def test_the_adapter_folder_stands_alone(self, base, rows, tmp_path):
        run = adapt(base, rows, tmp_path / "run")
        moved = tmp_path / "elsewhere"
        run.adapter.rename(moved)
        again = budwood.open_run(moved)
        assert again.facts.method == "gift" and again.metrics == {}
        assert not list(moved.glob("*.bin")) and not list(moved.glob("*.pt")) and not list(moved.glob("*.pkl"))

    def test_unknown_exports_are_named(self, base, rows, tmp_path):
        run = adapt(base, rows, tmp_path / "run")
        with pytest.raises(NotSupportedError, match="lora"):
            run.export("onnx", tmp_path / "x")
        assert not (tmp_path / "x").exists()

    def test_an_instruction_has_no_method_yet(self, base):
        with pytest.raises(NotSupportedError, match="instruction"):
            budwood.adapt(base, budwood.Instruction("do it"))


def _same(path: Path) -> dict[str, object]:
    again = _inspect.generate(path, "a", max_new_tokens=5)
    return {"text": again["text"], "tokens": again["tokens"]}


def _tensors(run: budwood.Run) -> dict[str, list]:
    stored = load_file(run.adapter / "adapter_model.safetensors")
    return {name: tensor.tolist() for name, tensor in stored.items()}


@pytest.mark.usefixtures("unverified")
@pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")
@pytest.mark.parametrize("tuner", ["shared_lora", "dora", "vera", "ia3", "prompt", "prefix"])
def test_every_tuner_trains_by_the_same_command(base, rows, tmp_path, tuner):
    small = {name: value for name, value in QUICK.items() if name != "tuner.rank" or "lora" in tuner}
    run = adapt(base, rows, tmp_path / "run", tuner=tuner, overrides=small)
    assert run.status["state"] == "done" and run.facts.tuner == tuner
    assert run.metrics["final_loss"] > 0 and run.metrics["comparison"][1]["parameters"] > 0
    if tuner in ("prompt", "prefix"):
        assert _inspect.generate(run.path, "a", max_new_tokens=3)["tokens"] <= 3
        with pytest.raises(NotSupportedError):
            run.export("lora", tmp_path / "x")


def test_prefix_tuning_refuses_gradient_checkpointing(base, rows, tmp_path):
    small = {"training.gradient_checkpointing": True}
    with pytest.raises(NotSupportedError, match="gradient checkpointing"):
        adapt(base, rows, tmp_path / "run", tuner="prefix", overrides=small)
