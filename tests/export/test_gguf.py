"""A GGUF LoRA holds the trained adapter, and llama.cpp computes with it what PyTorch computes."""

from __future__ import annotations

import json

import gguf
import pytest
import torch
from peft import PeftModel, PromptTuningConfig

from budwood.errors import AdapterError, NotSupportedError, StorageError, UsageError, VerificationError
from budwood.export import gguf_verify
from budwood.export.gguf_lora import export_gguf
from budwood.export.gguf_names import GgufNames
from budwood.export.gguf_verify import LIMIT, RUN, check_file, llama_cpp_installed, run_llama_cpp, verify_gguf
from budwood.export.logits import adapted_logits, base_logits, probe_inputs
from budwood.models import load_base, locate
from budwood.peft import register
from budwood.run import open_run
from budwood.tuning.factors import lora_factors
from tests import tiny
from tests.export import bases
from tests.export.trained import CARD, lora, trained
from tests.models import gguf_files

register()
IDS = probe_inputs(256)
needs_llama_cpp = pytest.mark.skipif(
    not llama_cpp_installed(), reason="llama-cpp-python is not installed (make llamacpp)"
)


def export(model, out, **changes):
    return export_gguf(model, out, **({"base_id": "org/tiny", "revision": None, "card": CARD} | changes))


def gift(model=None) -> PeftModel:
    from budwood.methods.gift.config import GiftConfig

    return trained(GiftConfig(r=4, target_modules=bases.LINEAR), model)


def no_order(monkeypatch, change=lambda self, name, rows: rows):
    monkeypatch.setattr(GgufNames, "to_gguf", change)
    monkeypatch.setattr(GgufNames, "from_gguf", change)


def check(report, name):
    return next(check for check in report.checks if check.name == name)


def failed(report):
    return {check.name for check in report.checks if not check.ok}


def test_the_file_says_what_it_is(tmp_path):
    model = trained(lora(target_modules=["q_proj", "v_proj"], rank_pattern={"v_proj": 6}, use_rslora=True))
    result = export(model, tmp_path / "x.gguf", revision="abc")
    reader = gguf.GGUFReader(result.folder)
    said = {name: field.contents() for name, field in reader.fields.items()}
    assert said["general.type"] == "adapter" and said["general.architecture"] == "llama"
    assert said["adapter.type"] == "lora" and said["adapter.lora.alpha"] == 6.0 == result.rank
    assert said["general.base_model.0.name"] == "org/tiny" and said["general.base_model.0.version"] == "abc"
    shapes = {tensor.name: tuple(reversed(tensor.shape.tolist())) for tensor in reader.tensors}
    assert shapes["blk.1.attn_q.weight.lora_a"] == (6, 32) and shapes["blk.1.attn_v.weight.lora_b"] == (16, 6)
    assert len(shapes) == 8 == 2 * result.modules
    assert result.bytes == result.folder.stat().st_size and result.rank == 6


def test_the_result_has_the_lines_that_use_it(tmp_path):
    result = export(trained(lora()), tmp_path / "a folder")
    assert result.folder == tmp_path / "a folder" / "a folder.gguf" and result.folder.is_file()
    assert result.serve_lines["llama-server"] == f"llama-server -m BASE.gguf --lora '{result.folder}'"
    assert result.serve_lines["llama-cli"].startswith("llama-cli -m BASE.gguf --lora")
    json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_read_back_it_holds_the_factors(dtype, tmp_path):
    model = trained(lora(target_modules=bases.LINEAR, rank_pattern={"up_proj": 2}))
    export(model, tmp_path / "x.gguf", dtype=dtype)
    checks = check_file(tmp_path / "x.gguf", GgufNames(model.get_base_model()), lora_factors(model))
    assert all(check.ok for check in checks), checks


def test_gpt2_is_named_too_and_its_transposed_weights_are_not_transposed_again(tmp_path):
    model = trained(lora(target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True), tiny.gpt2())
    export(model, tmp_path / "x.gguf")
    shapes = {t.name: t.shape.tolist() for t in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    assert shapes["blk.0.attn_qkv.weight.lora_a"] == [32, 4] and shapes["blk.0.attn_qkv.weight.lora_b"] == [4, 96]


def test_a_file_of_another_adapter_is_found(tmp_path):
    export(trained(lora(target_modules=["q_proj", "v_proj"]), seed=2), tmp_path / "x.gguf")
    model = trained(lora(target_modules=["q_proj", "o_proj"], r=8))
    names = {
        c.name
        for c in check_file(tmp_path / "x.gguf", GgufNames(model.get_base_model()), lora_factors(model))
        if not c.ok
    }
    assert names == {
        "the head says what llama.cpp reads",
        "no factor is missing from the file",
        "no tensor of the file is left over",
        "the factors are the adapter's",
    }


def test_a_wrong_order_of_rows_is_found_without_llama_cpp(tmp_path, monkeypatch):
    model = trained(lora(target_modules=["q_proj", "v_proj"]))
    with monkeypatch.context() as patch:
        no_order(patch)
        export(model, tmp_path / "x.gguf")
    checks = check_file(tmp_path / "x.gguf", GgufNames(model.get_base_model()), lora_factors(model))
    assert [check.name for check in checks if not check.ok] == ["the factors are the adapter's"]


@pytest.mark.parametrize("text", [b"", b"GGUF", b"no such thing"])
def test_a_broken_file_is_an_error_of_ours(text, tmp_path):
    (tmp_path / "x.gguf").write_bytes(text)
    with pytest.raises(AdapterError, match=r"x\.gguf"):
        check_file(tmp_path / "x.gguf", GgufNames(tiny.llama()), {})


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_what_a_gguf_lora_cannot_hold_is_refused_and_leaves_nothing(tmp_path):
    refused = {
        "tied": (NotSupportedError, trained(lora(target_modules=["q_proj", "lm_head"]))),
        "embedding": (NotSupportedError, trained(lora(target_modules=["embed_tokens"]))),
        "biases": (NotSupportedError, trained(lora(bias="lora_only"))),
        "no LoRA": (NotSupportedError, trained(PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))),
        "whole modules": (NotSupportedError, trained(lora(modules_to_save=["norm"]))),
    }
    for name, (error, model) in refused.items():
        with pytest.raises(error):
            export(model, tmp_path / f"{name}.gguf")
    with pytest.raises(UsageError, match="float64"):
        export(trained(lora()), tmp_path / "x.gguf", dtype=torch.float64)
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_cannot_be_stored_are_refused(tmp_path):
    model = trained(lora())
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if "lora_A" in name)[0, 0] = 1e6
    with pytest.raises(AdapterError, match="too large"):
        export(model, tmp_path / "x.gguf", dtype=torch.float16)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_and_a_failed_check_leaves_it(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_text("mine")
    with pytest.raises(StorageError):
        export(trained(lora()), path)

    def refuse(file):
        assert file.is_file() and file != path
        raise VerificationError("no")

    with pytest.raises(VerificationError):
        export(trained(lora()), path, replace=True, inspect=refuse)
    assert path.read_text() == "mine" and list(tmp_path.iterdir()) == [path]
    export(trained(lora()), path, replace=True)
    assert path.read_bytes().startswith(b"GGUF")


MODELS = {"llama": tiny.llama, "mistral": bases.mistral, "qwen2": bases.qwen2, "qwen3": bases.qwen3}


@needs_llama_cpp
@pytest.mark.parametrize("kind", MODELS)
def test_llama_cpp_computes_what_pytorch_computes(kind, tmp_path, monkeypatch):
    source = bases.saved(MODELS[kind](), tmp_path / "base")
    model = trained(lora(target_modules=bases.LINEAR, lora_alpha=2, use_rslora=True), MODELS[kind]())
    export(model, tmp_path / "x.gguf")
    report = verify_gguf(tmp_path / "x.gguf", model, source, IDS)
    assert report.ok, str(report)
    assert check(report, RUN).value < LIMIT / 10
    assert check(report, "logits differ from the base's").value > 0.1


@needs_llama_cpp
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_without_the_order_of_rows_llama_cpp_computes_something_else(kind, tmp_path, monkeypatch):
    source = bases.saved(MODELS[kind](), tmp_path / "base")
    model = trained(lora(target_modules=["q_proj", "k_proj"]), MODELS[kind]())
    with monkeypatch.context() as patch:
        no_order(patch)
        export(model, tmp_path / "x.gguf")
    report = verify_gguf(tmp_path / "x.gguf", model, source, IDS)
    assert failed(report) == {"the factors are the adapter's", RUN}
    assert check(report, RUN).value > 10 * LIMIT


@needs_llama_cpp
def test_gift_on_a_quantised_gguf_and_its_16_bit_factors(tmp_path):
    file = gguf_files.write(tmp_path / "tiny.gguf", gguf_files.llama(), quantised=True)
    source = locate(str(file))
    model = gift(load_base(source, dtype="float32").model)
    ids = probe_inputs(len(gguf_files.WORDS))
    export(model, tmp_path / "x.gguf")
    report = verify_gguf(tmp_path / "x.gguf", model, source, ids)
    assert report.ok, str(report)
    assert check(report, RUN).limit == LIMIT and check(report, RUN).value < LIMIT / 10
    for dtype in (torch.float16, torch.bfloat16):
        export(model, tmp_path / "x.gguf", dtype=dtype, replace=True)
        report = verify_gguf(tmp_path / "x.gguf", model, source, ids)
        assert report.ok and LIMIT / 10 < check(report, RUN).value, str(report)


@needs_llama_cpp
def test_gpt2_in_llama_cpp(tmp_path):
    base = bases.gpt2_gguf(tiny.gpt2(), tmp_path / "base.gguf")
    model = trained(lora(target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True), tiny.gpt2())
    export(model, tmp_path / "x.gguf")
    answer = run_llama_cpp(base, tmp_path / "x.gguf", IDS)
    adapted, plain = adapted_logits(model, IDS), base_logits(model, IDS)
    # llama.cpp reads GELU off a table of 16-bit values.
    rounding = (answer.base - plain).abs().max()
    assert rounding < 0.01 and (answer.adapted - adapted).abs().max() < 2 * rounding + LIMIT
    assert (adapted - plain).abs().max() > 100 * rounding


@needs_llama_cpp
def test_another_base_is_found(tmp_path):
    source = bases.saved(tiny.llama(seed=5), tmp_path / "base")
    model = trained(lora())
    export(model, tmp_path / "x.gguf")
    report = verify_gguf(tmp_path / "x.gguf", model, source, IDS)
    assert {name for name in failed(report) if "the base in llama.cpp" in name} and RUN in failed(report)


@needs_llama_cpp
def test_what_llama_cpp_does_not_load_is_a_failed_check(tmp_path):
    source = bases.saved(tiny.llama(), tmp_path / "base")
    model = trained(lora())
    export(model, tmp_path / "x.gguf")
    broken = tmp_path / "x.gguf"
    broken.write_bytes(broken.read_bytes().replace(b"blk.0.attn_q", b"blk.9.attn_q"))
    report = verify_gguf(broken, model, source, IDS)
    assert "a fresh process loads it" in failed(report) and "does not exist in base model" in str(report)


def test_without_llama_cpp_the_report_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_verify, "llama_cpp_installed", lambda: False)
    model = trained(lora())
    export(model, tmp_path / "x.gguf")
    report = verify_gguf(tmp_path / "x.gguf", model, bases.saved(tiny.llama(), tmp_path / "base"), IDS)
    assert report.ok and check(report, RUN).value == "not checked" and "not installed" in check(report, RUN).note


@needs_llama_cpp
def test_a_base_that_is_not_written_as_gguf_is_said(tmp_path):
    model = trained(lora(target_modules=["c_attn"], fan_in_fan_out=True), tiny.gpt2())
    export(model, tmp_path / "x.gguf")
    report = verify_gguf(tmp_path / "x.gguf", model, bases.saved(tiny.gpt2(), tmp_path / "base"), IDS)
    assert report.ok and "no GGUF of GPT2LMHeadModel" in check(report, RUN).note
    scaled = dict(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})
    model = trained(lora(), tiny.llama(**scaled))
    export(model, tmp_path / "y.gguf")
    report = verify_gguf(tmp_path / "y.gguf", model, bases.saved(tiny.llama(**scaled), tmp_path / "other"), IDS)
    assert report.ok and "rope_type 'linear'" in check(report, RUN).note


def test_a_run_is_exported_and_its_checks_are_kept(tmp_path):
    base = tiny.save(tiny.llama(), tmp_path / "base")
    trained(lora(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    result = open_run(tmp_path / "adapter", base=str(base)).export("gguf", tmp_path / "x.gguf")
    names = [check["name"] for check in result.to_dict()["checks"]]
    assert "the factors are the adapter's" in names and RUN in names
    with pytest.raises(UsageError, match="float8"):
        open_run(tmp_path / "adapter", base=str(base)).export("gguf", tmp_path / "y.gguf", dtype="float8")


def test_a_file_that_fails_its_verification_does_not_appear(tmp_path, monkeypatch):
    base = tiny.save(tiny.llama(), tmp_path / "base")
    trained(lora(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    monkeypatch.setattr(GgufNames, "to_gguf", lambda self, name, rows: rows)
    with pytest.raises(VerificationError, match="the factors are the adapter's"):
        open_run(tmp_path / "adapter", base=str(base)).export("gguf", tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


@needs_llama_cpp
@pytest.mark.slow
@pytest.mark.smollm2
def test_the_real_model_with_gift(tmp_path, monkeypatch):
    source = located("smollm2")
    base = load_base(source, dtype="float32", device="cpu")
    model = gift(base.model)
    with torch.no_grad():  # as strong as a trained adapter: a model driven to nonsense rounds several times as much
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter *= 0.2
    ids = probe_inputs(base.tokenizer)
    export(model, tmp_path / "x.gguf")
    report = verify_gguf(tmp_path / "x.gguf", model, source, ids)
    assert report.ok, str(report)
    with monkeypatch.context() as patch:
        no_order(patch)
        export(model, tmp_path / "y.gguf")
    assert RUN in failed(verify_gguf(tmp_path / "y.gguf", model, source, ids))


def located(name):
    from budwood.errors import ModelError

    try:
        return locate(name)
    except ModelError as error:
        pytest.skip(f"{error.got}: {error.action}")
