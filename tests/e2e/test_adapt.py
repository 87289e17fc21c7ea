"""The whole story on a tiny model: examples in, a verified adapter out, exported, measured, used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import budwood
from budwood import _adapt, _inspect, recipe
from budwood.errors import BaseMismatchError, ConfigError, NotSupportedError, UsageError
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
        assert (exported.load()[0](input_ids=ids).logits - adapted).abs().max() < 1e-5
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
        made = _inspect.generate(run.path, "a", max_new_tokens=5)
        assert made["tokens"] <= 5 and made == made | _same(run.path)

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
        plan = _adapt.preview(base, budwood.Examples(rows), overrides=QUICK, out=tmp_path / "run")
        assert plan["steps"] == 10 and plan["trainable_parameters"] == 7 * 2 * 32 * 4
        assert plan["comparison"][1]["parameters"] > plan["trainable_parameters"]
        assert sorted(tmp_path.rglob("*")) == before

    def test_a_finished_run_is_kept_unless_forced(self, base, rows, tmp_path):
        adapt(base, rows, tmp_path / "run")
        with pytest.raises(UsageError, match="finished run"):
            adapt(base, rows, tmp_path / "run")
        adapt(base, rows, tmp_path / "run", force=True)

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

    def test_other_evidence_has_no_method_yet(self, base, rows):
        for evidence in (budwood.Documents(rows), budwood.Instruction("do it"), budwood.Repair(rows)):
            with pytest.raises(NotSupportedError, match=evidence.kind):
                budwood.adapt(base, evidence)


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
        with pytest.raises(NotSupportedError):
            _inspect.generate(run.path, "a")
        with pytest.raises(NotSupportedError):
            run.export("lora", tmp_path / "x")


def test_prefix_tuning_refuses_gradient_checkpointing(base, rows, tmp_path):
    small = {"training.gradient_checkpointing": True}
    with pytest.raises(NotSupportedError, match="gradient checkpointing"):
        adapt(base, rows, tmp_path / "run", tuner="prefix", overrides=small)
