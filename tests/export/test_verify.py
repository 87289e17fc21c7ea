"""Verification at two levels finds every fault that is planted.

Most tests run the probes in this process, through the same request files; one test of each level starts the real one.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import PromptTuningConfig
from safetensors.torch import load_file, save_file

import budwood.models
from budwood.errors import UsageError, VerificationError
from budwood.export import native_probe, portable_probe, verify
from budwood.export.checks import Check, VerifyReport, close, close_in_16_bits, differs
from budwood.export.logits import adapted_logits, base_logits, probe_inputs
from budwood.export.portable import export_lora
from budwood.export.verify import NativeBase, verify_native, verify_portable
from tests import tiny
from tests.export.trained import CARD, lora, trained

IDS = probe_inputs(256)
ADAPTED = "logits equal the trained model's"
AGREE = "logits agree with the trained model's"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A base folder, a trained adapter saved by PEFT (`native`) and its export (`portable`)."""
    folder = tmp_path_factory.mktemp("verify")
    tiny.save(tiny.llama(), folder / "base")
    model = make()
    model.save_pretrained(folder / "native")
    export_lora(model, folder / "portable", base_id=str(folder / "base"), revision=None, card=CARD)
    return folder


def make(**changes):
    return trained(lora(target_modules=["q_proj", "up_proj"], lora_alpha=2) if not changes else lora(**changes))


@pytest.fixture
def in_process(monkeypatch):
    """Answer requests without a second process."""

    def run(command, timeout_s):
        probe = native_probe if "budwood.export.native_probe" in command else portable_probe
        probe.main(command[-1])
        return ""

    def load_base(reference, **settings):
        assert settings["dtype"] == "float32" and settings["device"] == "cpu"
        return SimpleNamespace(model=tiny.llama(seed=int(reference)))

    monkeypatch.setattr(verify, "_run", run)
    monkeypatch.setattr(budwood.models, "load_base", load_base, raising=False)
    return NativeBase(reference="0", register="")


def spoilt(source: Path, target: Path, change) -> Path:
    shutil.copytree(source, target)
    path = target / "adapter_model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    return target


def zero_b(tensors):
    return {key: torch.zeros_like(t) if "lora_B" in key else t for key, t in tensors.items()}


def drop_key(tensors):
    return {key: t for key, t in tensors.items() if "layers.1.mlp.up_proj.lora_B" not in key}


def rename_prefix(tensors):
    return {key.replace("base_model.model.", "base_model."): t for key, t in tensors.items()}


def swap_layers(tensors):
    return {key: tensors[key.translate(str.maketrans("01", "10"))] for key in tensors}


def wrong_scale(tensors):
    return {key: t * 1.001 if "lora_B" in key else t for key, t in tensors.items()}


FAULTS = [zero_b, drop_key, rename_prefix, swap_layers, wrong_scale]


def failed(report: VerifyReport) -> set[str]:
    return {check.name for check in report.checks if not check.ok}


def reference():
    return adapted_logits(make(), IDS)


def test_a_sound_adapter_passes_natively_and_the_model_is_left_as_it_was(place, in_process):
    model = make()
    model.train()
    before = [(p.requires_grad, p.clone()) for p in model.parameters()]
    report = verify_native(model, place / "native", in_process, IDS)
    assert report.ok, str(report)
    assert report.require() is report
    assert model.training and all(
        p.requires_grad == wanted and torch.equal(p, value) for p, (wanted, value) in zip(model.parameters(), before)
    )
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_found_natively(fault, place, in_process, tmp_path):
    report = verify_native(make(), spoilt(place / "native", tmp_path / "x", fault), in_process, IDS)
    assert ADAPTED in failed(report)
    if fault in (drop_key, rename_prefix):
        assert "no parameter is missing from the file" in failed(report)
    with pytest.raises(VerificationError, match=ADAPTED) as error:
        report.require()
    assert error.value.exit_code == 4


def test_another_base_is_found_natively(place, in_process):
    other = NativeBase(reference="5", register="")
    assert "the base is the same" in failed(verify_native(make(), place / "native", other, IDS))


def test_an_adapter_that_changes_nothing_fails(in_process, tmp_path):
    model = make()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.zeros_(parameter)
    model.save_pretrained(tmp_path / "x")
    report = verify_native(model, tmp_path / "x", in_process, IDS)
    assert failed(report) == {"logits differ from the base's"}
    assert "changes nothing" in str(report)


def test_a_bf16_adapter_is_not_cast_to_fp32():
    model = make()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.bfloat16()
    assert verify._in_fp32(make(), "default") and not verify._in_fp32(model, "default")


def test_a_soft_prompt_passes_natively(in_process, tmp_path):
    model = trained(PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    model.save_pretrained(tmp_path / "x")
    report = verify_native(model, tmp_path / "x", in_process, IDS)
    assert report.ok, str(report)


def test_ambiguous_models_are_refused(place, in_process):
    model = make()
    model.add_adapter("second", lora(target_modules=["v_proj"]))
    model.base_model.set_adapter(["default", "second"])
    with pytest.raises(UsageError, match="second"):
        verify_native(model, place / "native", in_process, IDS)
    model = make()
    model.merge_adapter()
    with pytest.raises(UsageError, match="merged"):
        verify_native(model, place / "native", in_process, IDS)


def test_a_sound_export_fails_only_by_the_process_it_is_loaded_in(place, in_process):
    report = verify_portable(place / "portable", place / "base", reference(), IDS)
    assert failed(report) == {"budwood is not imported there"}, str(report)


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_found_in_an_export(fault, place, in_process, tmp_path):
    folder = spoilt(place / "portable", tmp_path / "x", fault)
    names = failed(verify_portable(folder, place / "base", reference(), IDS))
    assert AGREE in names
    if fault is drop_key:
        assert {"every module has both factors", "no parameter is missing from the file"} <= names
    if fault is rename_prefix:
        assert {"no parameter is missing from the file", "no tensor of the file is left over"} <= names


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"lora_alpha": 16}, "nothing is left to interpret"),
        ({"use_rslora": True}, "nothing is left to interpret"),
        ({"bias": "all"}, "nothing is left to interpret"),
        ({"target_modules": ".*_proj"}, "target_modules cover the file"),
        ({"r": None}, "one rank for all modules"),
        ({"r": 4, "lora_alpha": 4}, "one rank for all modules"),
        ({"target_modules": ["q_proj"]}, "target_modules cover the file"),
        ({"target_modules": ["q_proj", "up_proj", "k_proj"]}, "target_modules cover the file"),
    ],
)
def test_a_configuration_that_does_not_fit_the_file_is_found_without_loading(
    changes, name, place, tmp_path, monkeypatch
):
    shutil.copytree(place / "portable", tmp_path / "x")
    path = tmp_path / "x/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    monkeypatch.setattr(verify, "_run", lambda command, timeout_s: "not run")
    assert name in failed(verify_portable(tmp_path / "x", place / "base", reference(), IDS))


def noisy(logits: torch.Tensor, size: float, seed: int = 0) -> torch.Tensor:
    return logits + size * torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed))


def test_sixteen_bits_are_judged_by_what_rounding_does():
    logits, base = reference(), base_logits(make(), IDS)
    other = noisy(logits, 0.01)
    sound = close_in_16_bits("x", noisy(logits, 0.01, seed=1), other, logits, base)
    assert sound.ok and "cannot tell" not in sound.note and sound.limit < 1e-3
    assert not close_in_16_bits("x", noisy(logits, 0.05, seed=1), other, logits, base).ok
    assert "cannot tell" in close_in_16_bits("x", logits, other, logits, noisy(logits, 0.01, seed=1)).note
    assert not close("x", logits, other).ok


def test_sixteen_bits_from_end_to_end(in_process, tmp_path):
    tiny.save(tiny.llama().bfloat16(), tmp_path / "base")
    model = trained(lora(target_modules=["q_proj", "up_proj"]), tiny.llama().bfloat16())
    export_lora(model, tmp_path / "x", base_id="x", revision=None, card=CARD)
    logits = adapted_logits(model, IDS)
    assert logits.dtype == torch.bfloat16
    report = verify_portable(tmp_path / "x", tmp_path / "base", logits, IDS, torch.bfloat16)
    assert failed(report) == {"budwood is not imported there"}, str(report)
    lost = spoilt(tmp_path / "x", tmp_path / "y", zero_b)
    report = verify_portable(lost, tmp_path / "base", logits, IDS, torch.bfloat16)
    assert AGREE in failed(report)


def test_nan_and_other_shapes_pass_no_limit():
    logits, nan, other = torch.eye(3)[None], torch.full((1, 3, 3), float("nan")), torch.zeros(1, 3, 4)
    assert not close("x", logits, nan).ok and not close("x", logits, other).ok
    assert not close_in_16_bits("x", logits, nan, logits, logits).ok
    assert json.loads(json.dumps(close("x", logits, nan).to_dict(), allow_nan=False))["value"] == "inf"
    assert not close_in_16_bits("x", logits, other, logits, logits).ok


def test_almost_nothing_is_told():
    weak = differs("x", torch.zeros(1, 2, 3), torch.full((1, 2, 3), 1e-7))
    assert weak.ok and "almost nothing" in weak.note


def test_a_report_without_checks_is_not_ok():
    assert not VerifyReport(()).ok
    assert VerifyReport((Check("a", True),)).ok


def test_probe_inputs_are_the_same_for_a_seed_and_hold_no_special_token():
    tokenizer = tiny.tokenizer()
    ids = probe_inputs(tokenizer, seed=3)
    assert torch.equal(ids, probe_inputs(tokenizer, seed=3)) and not torch.equal(ids, probe_inputs(tokenizer, seed=4))
    assert not set(ids.flatten().tolist()) & set(tokenizer.all_special_ids)
    assert probe_inputs(7).max() < 7


def test_logits_are_taken_in_evaluation_mode():
    model = make(lora_dropout=0.5)
    model.train()
    assert torch.equal(adapted_logits(model, IDS), adapted_logits(model, IDS))
    assert not torch.equal(adapted_logits(model, IDS), base_logits(model, IDS))
    assert model.training


def test_a_crash_and_a_timeout_are_failed_checks_with_the_last_lines(place):
    code = "import sys; print('x' * 5, file=sys.stderr); raise SystemExit('no such thing')"
    assert "no such thing" in verify._run([sys.executable, "-c", code], 60)
    assert "did not finish within 0.1 s" in verify._run([sys.executable, "-c", "import time; time.sleep(60)"], 0.1)


def test_the_real_process_knows_nothing_of_budwood_and_agrees(place):
    report = verify_portable(place / "portable", place / "base", reference(), IDS)
    assert report.ok, str(report)


def test_the_portable_probe_names_no_module_of_ours():
    text = Path(portable_probe.__file__).read_text()
    assert "budwood" not in text


@pytest.mark.slow
def test_the_real_native_process_has_the_same_bits(place):
    base = NativeBase(reference=str(place / "base"), register="")
    report = verify_native(make(), place / "native", base, IDS)
    assert report.ok, str(report)


@pytest.mark.slow
def test_a_base_that_is_gone_is_a_failed_check(place, tmp_path):
    report = verify_portable(place / "portable", tmp_path / "absent", reference(), IDS)
    assert failed(report) == {"a fresh process loads it"} and "absent" in str(report)


def test_fp32_is_held_against_64_bits_where_it_is_itself_too_far_away():
    exact = torch.full((1, 2, 3), 10.0, dtype=torch.float64)
    trained = exact.float() + 1e-2  # what a model with huge activations does in fp32
    for away, ok in ((5e-3, True), (-9e-3, True), (1.2e-2, False), (-0.5, False), (float("nan"), False)):
        assert close("x", trained, exact.float() + away, lambda: exact).ok is ok
    assert not close("x", trained, exact.float(), None).ok

    def unneeded() -> torch.Tensor:
        raise AssertionError

    assert close("x", trained, trained + 1e-5, unneeded).ok
