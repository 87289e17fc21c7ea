"""What `plan` says against what an adaptation does, on tiny models."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import budwood
from budwood import _adapt, _plan
from budwood.errors import ConfigError, NotSupportedError, UsageError
from budwood.evidence import Documents, Examples, Instruction, Repair
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


def possible(found: dict) -> dict[str, bool]:
    return {row["export"]: row["possible"] for row in found["exports"]}


def reason(found: dict, export: str) -> str:
    return next(row["reason"] for row in found["exports"] if row["export"] == export)


def test_the_default_for_examples_with_all_figures(base, rows, tmp_path):
    found = _plan.plan(base, Examples(rows), out=tmp_path / "run", overrides={"tuner.rank": 4, "training.epochs": 2})
    assert found["method"]["name"] == "gift" and "default for examples" in found["method"]["why"]
    assert found["model"]["parameters"] == sum(p.numel() for p in tiny.llama().parameters())
    assert found["trainable_parameters"] == 7 * 2 * 32 * 4 and found["adapter_bytes"] == 4 * 7 * 2 * 32 * 4
    preview = _adapt.preview(base, Examples(rows), overrides={"tuner.rank": 4, "training.epochs": 2})
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
    assert _plan.plan(base, Examples(rows))["steps"]


def test_the_command_does_what_was_planned(base, rows, tmp_path, monkeypatch):
    from budwood.cli._app import app

    (tmp_path / "r.yaml").write_text("training: {epochs: 2}\n")
    overrides = {"tuner.rank": 4, "tuner.targets": ["q", "v"], "data.system": 'say "hi" — $HOME'}
    planned = _plan.plan(
        base, Examples(rows), out=tmp_path / "my run", seed=3, recipe=tmp_path / "r.yaml", overrides=overrides
    )
    words = shlex.split(planned["command"])
    assert words[0] == "budwood" and words[-1] == str(tmp_path / "my run")
    result = CliRunner().invoke(app, [*words[1:], "--dry-run", "--json"], catch_exceptions=False)
    assert json.loads(result.stdout)["recipe"] == planned["recipe"]


def test_without_evidence_what_depends_on_rows_is_unknown(base):
    found = _plan.plan(base, method="lora")
    assert (found["steps"], found["tokens"], found["seconds"]["estimate"]) == (None, None, None)
    assert "no rows" in found["seconds"]["why"]
    assert found["memory_batch"] == {"rows": 8, "length": 1024, "trained": 1024}
    assert found["command"] == f"budwood adapt {base} --examples FILE --method lora -o RUN"
    assert found["trainable_parameters"] > 0


def test_the_evidence_of_a_recipe_counts(base, rows, tmp_path):
    _ = _plan.plan(base, Examples(rows), out=tmp_path / "run")
    write_text(tmp_path / "r.yaml", f"evidence: {{kind: examples, paths: [{rows}]}}\ntraining: {{max_steps: 5}}\n")
    found = _plan.plan(base, recipe=tmp_path / "r.yaml")
    assert found["steps"] == 5 and f"--examples {rows}" in found["command"]
    assert "default" in found["method"]["why"]


@pytest.mark.parametrize("evidence", [Documents("d"), Instruction("Do it."), Repair("r")])
def test_a_method_that_is_not_built_is_said_plainly(base, evidence, monkeypatch):
    examples = {name: method for name, method in registry.methods().items() if method.evidence == "examples"}
    monkeypatch.setattr(_plan, "methods", lambda: examples)
    found = _plan.plan(base, evidence)
    assert found["method"]["built"] is False and found["command"] is None
    assert "does not have it yet" in found["method"]["why"] and "--examples" in found["method"]["instead"]
    assert found["model"]["class"] == "LlamaForCausalLM"


def test_what_is_intended_is_the_default_of_what_is_built():
    for method in registry.methods().values():
        if method.default:
            assert _plan.INTENDED[method.evidence][0] == method.name


def finished(place: Path, model: str, *, speed: float = 50.0, **environment: object) -> None:
    resolved = _plan.plan(model)["recipe"]
    write_text(place / "recipe.yaml", json.dumps(resolved))
    write_json(place / "metrics.json", {"tokens_per_s": speed})
    write_json(place / "env.json", describe_environment() | environment)
    write_json(place / "status.json", {"state": "done", "heartbeat": "2026-01-01T00:00:00+00:00"})


def test_time_is_stated_only_where_a_run_like_it_was_measured_here(base, rows, tmp_path):
    planned = lambda: _plan.plan(base, Examples(rows), out=tmp_path / "runs" / "new")["seconds"]  # noqa: E731
    assert planned()["estimate"] is None and "no finished run" in planned()["why"]
    finished(tmp_path / "runs" / "elsewhere", base, cpu="another")
    (tmp_path / "runs" / "broken").mkdir()
    write_json(tmp_path / "runs" / "broken" / "metrics.json", {})
    assert planned()["estimate"] is None
    finished(tmp_path / "runs" / "here", base)
    found = _plan.plan(base, Examples(rows), out=tmp_path / "runs" / "new")
    assert found["seconds"]["estimate"] == round(found["tokens"] / 50)
    assert "runs/here" in found["seconds"]["why"]


def test_exports_follow_the_promises_of_the_tuner(base, monkeypatch):
    for tuner in registry.tuners().values():
        if tuner.name not in registry.methods() or registry.methods()[tuner.name].evidence != "examples":
            continue
        small = {"tuner.rank": 4} if "rank" in tuner.settings.model_fields else {}
        found = _plan.plan(base, method=tuner.name, overrides=small)
        keeps = "lora" in {promise.value for promise in tuner.keeps}
        assert possible(found)["lora"] is keeps, tuner.name
        assert keeps or reason(found, "lora") in tuner.refuses.values()
        assert all(row["reason"] for row in found["exports"])


def test_exports_follow_the_architecture_and_vllm(tmp_path):
    found = _plan.plan(str(tiny.save(tiny.gpt2(), tmp_path / "gpt2")))
    assert possible(found) == {"lora": True, "vllm": False, "gguf": True, "merged": True, "prompts": False}
    assert "gpt2 without LoRA" in reason(found, "vllm")


def test_a_rank_that_no_server_takes_is_no_export(base):
    found = _plan.plan(base, method="lora", overrides={"tuner.rank": 1000})
    assert not possible(found)["lora"] and "rank 1000" in reason(found, "lora")


def test_a_quantised_base_cannot_be_merged(tmp_path):
    folder = tiny.save(tiny.llama(), tmp_path / "q")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    found = _plan.plan(str(folder))
    assert found["model"]["quantised"] == "gptq"
    assert not possible(found)["merged"] and "quantised" in reason(found, "merged")
    size = (folder / "model.safetensors").stat().st_size
    assert found["memory_mib"]["base"] == round(size / 2**20, 1)
    suffixed = _plan.plan(str(tiny.save(tiny.llama(), tmp_path / "full")) + "+nf4")
    assert suffixed["model"]["quantised"] == "nf4" and not possible(suffixed)["merged"]
    assert suffixed["memory_mib"]["base"] < _plan.plan(str(tmp_path / "full"))["memory_mib"]["base"] + 1e-9


def test_bad_choices_are_refused(base, rows, tmp_path):
    with pytest.raises(UsageError, match="no method called"):
        _plan.plan(base, Examples(rows), method="gfit")
    with pytest.raises(ConfigError, match="no setting"):
        _plan.plan(base, overrides={"tuner.rnak": 3})
    with pytest.raises((ConfigError, NotSupportedError)):
        _plan.plan(base, Documents(rows), method="gift")
    with pytest.raises(budwood.BudwoodError):
        _plan.plan(str(tmp_path / "nowhere"))
