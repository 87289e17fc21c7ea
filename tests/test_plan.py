"""What `plan` says against what an adaptation does, on tiny models."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import budwood
from budwood import _adapt, _plan
from budwood._request import Request
from budwood.errors import ConfigError, ModelError, NotSupportedError, UsageError
from budwood.evidence import Documents, Evidence, Examples, Instruction, Repair
from budwood.storage import write_json, write_text
from budwood.training.environment import describe_environment
from budwood.tuning import registry
from tests import tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save(tiny.llama(), tmp_path_factory.mktemp("base")))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": c, "completion": c * 3}) + "\n" for c in "abcdefghijklmnopqrst"))
    return path


def plan(model: str | None = None, evidence: Evidence | None = None, *, out: Path | None = None, **asked: Any) -> dict:
    return _plan.plan(Request(model, evidence, **asked), out=out)


def possible(found: dict) -> dict[str, bool]:
    return {row["export"]: row["possible"] for row in found["exports"]}


def reason(found: dict, export: str) -> str:
    return next(row["reason"] for row in found["exports"] if row["export"] == export)


def test_the_default_for_examples_with_all_figures(base, rows, tmp_path):
    found = plan(base, Examples(rows), out=tmp_path / "run", overrides={"tuner.rank": 4, "training.epochs": 2})
    assert found["method"]["name"] == "gift" and "default for examples" in found["method"]["why"]
    assert found["model"]["parameters"] == sum(p.numel() for p in tiny.llama().parameters())
    assert found["trainable_params"] == 7 * 2 * 32 * 4 and found["adapter_bytes"] == 4 * 7 * 2 * 32 * 4
    preview = _adapt.preview(Request(base, Examples(rows), overrides={"tuner.rank": 4, "training.epochs": 2}))
    assert found["steps"] == preview["steps"] and found["rows"] == preview["rows"]
    assert found["comparison"] == preview["comparison"]
    report = found["rows"]
    assert found["tokens"] == round(report["tokens"] / report["sequences"] * 2 * report["train_rows"])
    assert found["memory_batch"] == {"rows": 8, "length": report["length_tokens"]["max"], "trained": 4}
    assert found["memory_mib"]["total"] > 0 and "activations = " in found["memory_formula"]
    assert possible(found) == {"lora": True, "vllm": True, "gguf": True, "merged": True, "prompts": False}
    json.dumps(found)
    assert not (tmp_path / "run").exists()


def test_no_weight_is_read(base, rows, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", refuse)
    monkeypatch.setattr("safetensors.torch.load_file", refuse)
    assert plan(base, Examples(rows))["steps"]


def test_the_command_does_what_was_planned(base, rows, tmp_path, monkeypatch):
    from budwood.cli._app import app

    (tmp_path / "r.yaml").write_text("training: {epochs: 2}\n")
    overrides = {"tuner.rank": 4, "tuner.targets": ["q", "v"], "data.system": 'say "hi" — $HOME'}
    planned = plan(
        base, Examples(rows), out=tmp_path / "my run", seed=3, recipe=tmp_path / "r.yaml", overrides=overrides
    )
    words = shlex.split(planned["command"])
    assert words[0] == "budwood" and words[-1] == str(tmp_path / "my run")
    result = CliRunner().invoke(app, [*words[1:], "--dry-run", "--json"], catch_exceptions=False)
    assert json.loads(result.stdout)["recipe"] == planned["recipe"]


def test_without_evidence_what_depends_on_rows_is_unknown(base):
    found = plan(base, method="lora")
    assert (found["steps"], found["tokens"], found["seconds"]["estimate"]) == (None, None, None)
    assert "no rows" in found["seconds"]["why"]
    assert found["memory_batch"] == {"rows": 8, "length": 1024, "trained": 1024}
    assert found["command"] == f"budwood adapt {base} --examples FILE --method lora -o RUN"
    assert found["trainable_params"] > 0


def test_the_evidence_of_a_recipe_counts(base, rows, tmp_path):
    _ = plan(base, Examples(rows), out=tmp_path / "run")
    write_text(tmp_path / "r.yaml", f"evidence: {{kind: examples, paths: [{rows}]}}\ntraining: {{max_steps: 5}}\n")
    found = plan(base, recipe=tmp_path / "r.yaml")
    assert found["steps"] == 5
    assert found["command"].startswith(f"budwood adapt {base} --recipe {tmp_path / 'r.yaml'} -o runs/")
    assert "default" in found["method"]["why"]


@pytest.mark.parametrize("evidence", [Documents("d"), Instruction("Do it."), Repair("r")])
def test_a_method_that_is_not_built_is_said_plainly(base, evidence, monkeypatch):
    examples = {name: method for name, method in registry.methods().items() if method.evidence == "examples"}
    monkeypatch.setattr(_plan, "methods", lambda: examples)
    found = plan(base, evidence)
    assert found["method"]["built"] is False and found["command"] is None
    assert "does not have it yet" in found["method"]["why"] and "--examples" in found["method"]["instead"]
    assert found["model"]["class"] == "LlamaForCausalLM"


def test_what_is_intended_is_the_default_of_what_is_built():
    for method in registry.methods().values():
        if method.default:
            assert _plan.INTENDED[method.evidence][0] == method.name


def finished(place: Path, model: str, *, speed: float = 50.0, **environment: object) -> None:
    resolved = plan(model)["recipe"]
    write_text(place / "recipe.yaml", json.dumps(resolved))
    write_json(place / "metrics.json", {"tokens_per_s": speed})
    write_json(place / "env.json", describe_environment() | environment)
    write_json(place / "status.json", {"state": "done", "heartbeat": "2026-01-01T00:00:00+00:00"})


def test_time_is_stated_only_where_a_run_like_it_was_measured_here(base, rows, tmp_path):
    planned = lambda: plan(base, Examples(rows), out=tmp_path / "runs" / "new")["seconds"]  # noqa: E731
    assert planned()["estimate"] is None and "no finished run" in planned()["why"]
    finished(tmp_path / "runs" / "elsewhere", base, cpu="another")
    (tmp_path / "runs" / "broken").mkdir()
    write_json(tmp_path / "runs" / "broken" / "metrics.json", {})
    assert planned()["estimate"] is None
    finished(tmp_path / "runs" / "here", base)
    found = plan(base, Examples(rows), out=tmp_path / "runs" / "new")
    assert found["seconds"]["estimate"] == round(found["tokens"] / 50)
    assert "runs/here" in found["seconds"]["why"]


def test_exports_follow_the_promises_of_the_tuner(base, monkeypatch):
    for tuner in registry.tuners().values():
        if tuner.name not in registry.methods() or registry.methods()[tuner.name].evidence != "examples":
            continue
        small = {"tuner.rank": 4} if "rank" in tuner.settings.model_fields else {}
        found = plan(base, method=tuner.name, overrides=small)
        keeps = "lora" in {promise.value for promise in tuner.keeps}
        assert possible(found)["lora"] is keeps, tuner.name
        assert keeps or reason(found, "lora") in tuner.refuses.values()
        assert all(row["reason"] for row in found["exports"])


def test_exports_follow_the_architecture_and_vllm(tmp_path):
    found = plan(str(tiny.save(tiny.gpt2(), tmp_path / "gpt2")))
    assert possible(found) == {"lora": True, "vllm": False, "gguf": True, "merged": True, "prompts": False}
    assert "gpt2 without LoRA" in reason(found, "vllm")


def test_a_rank_that_no_server_takes_is_no_export(base):
    found = plan(base, method="lora", overrides={"tuner.rank": 1000})
    assert not possible(found)["lora"] and "rank 1000" in reason(found, "lora")


def test_a_quantised_base_is_planned_as_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("budwood.models.quantisation._installed", lambda package: True)
    folder = tiny.save(tiny.llama(), tmp_path / "q")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    found = plan(str(folder))
    assert found["model"]["quantised"] == "gptq"
    assert "quantised" in reason(found, "merged")
    size = (folder / "model.safetensors").stat().st_size
    assert found["memory_mib"]["base"] == round(size / 2**20, 1)
    suffixed = plan(str(tiny.save(tiny.llama(), tmp_path / "full")) + "+nf4")
    assert suffixed["model"]["quantised"] == "nf4" and "quantised" in reason(suffixed, "merged")
    assert suffixed["memory_mib"]["base"] < plan(str(tmp_path / "full"))["memory_mib"]["base"] + 1e-9


def test_a_recipe_may_name_the_model_too(base, rows, tmp_path):
    evidence = f"evidence: {{kind: examples, paths: [{rows}]}}\n"
    write_text(tmp_path / "r.yaml", f"model: {base}\n{evidence}training: {{max_steps: 4}}\n")
    found = plan(recipe=tmp_path / "r.yaml", out=tmp_path / "run")
    assert (found["steps"], found["warmup_steps"]) == (4, 2)
    assert found["command"] == f"budwood adapt --recipe {tmp_path / 'r.yaml'} -o {tmp_path / 'run'}"


def test_a_quantisation_that_is_not_installed_fails_as_the_run_would(base, rows, monkeypatch):
    monkeypatch.setattr("budwood.models.quantisation._installed", lambda package: False)
    for look in (plan, lambda *asked: _adapt.preview(Request(*asked))):
        with pytest.raises(ModelError, match="bitsandbytes"):
            look(f"{base}+nf4", Examples(rows))


def test_bad_choices_are_refused(base, rows, tmp_path):
    with pytest.raises(UsageError, match="no method called"):
        plan(base, Examples(rows), method="gfit")
    with pytest.raises(ConfigError, match="no setting"):
        plan(base, overrides={"tuner.rnak": 3})
    with pytest.raises((ConfigError, NotSupportedError)):
        plan(base, Documents(rows), method="gift")
    with pytest.raises(budwood.BudwoodError):
        plan(str(tmp_path / "nowhere"))
