"""A merged model is an ordinary folder that answers as the adapter model does."""

from __future__ import annotations

import json

import pytest
import torch
from huggingface_hub import ModelCard
from peft import IA3Config, PromptTuningConfig
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from budwood.errors import NotSupportedError, StorageError, UsageError, VerificationError
from budwood.export import merged as merged_module
from budwood.export import merged_probe, verify
from budwood.export.logits import adapted_logits, base_logits, probe_inputs
from budwood.export.merged import dtype_of, export_merged, verify_merged
from budwood.models import load_base, locate
from budwood.peft import register
from budwood.run import open_run
from tests import tiny
from tests.export import bases
from tests.export.trained import CARD, lora, trained
from tests.models import gguf_files

register()
IDS = probe_inputs(256)
KL = "mean KL per token from the adapter model"
IMPORTED = "neither budwood nor PEFT is imported there"
LOGITS = "logits of the merged model"


def t5():
    from tests.export.test_portable import t5 as make

    return make()


def gift():
    from budwood.methods.gift.config import GiftConfig

    return GiftConfig(r=4, target_modules=bases.LINEAR)


def everywhere():
    return lora(target_modules=bases.LINEAR, lora_alpha=2)


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    """Answer requests without a second process; `budwood` is imported in this one."""

    def run(command, timeout_s):
        try:
            merged_probe.main(command[-1])
        except Exception as error:
            return str(error)
        return ""

    monkeypatch.setattr(verify, "_run", run)


def check(report, name):
    return next(check for check in report.checks if check.name == name)


def failed(report):
    return {check.name for check in report.checks if not check.ok} - {IMPORTED}


CASES = {
    "lora": (tiny.llama, everywhere()),
    "gift": (tiny.llama, gift()),
    "dora": (tiny.llama, lora(target_modules=["q_proj", "up_proj"], use_dora=True)),
    "ia3": (tiny.llama, IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])),
    "whole modules": (tiny.llama, lora(modules_to_save=["norm"])),
    "conv1d": (tiny.gpt2, lora(target_modules=["c_attn"], fan_in_fan_out=True)),
    "untied head": (lambda: tiny.llama(tie_word_embeddings=False), lora(target_modules=["q_proj", "lm_head"])),
    "encoder and decoder": (t5, lora(target_modules=["q", "wi"], task_type="SEQ_2_SEQ_LM")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_merged_model_answers_as_the_adapter_model(case, tmp_path):
    make, config = CASES[case]
    source = bases.saved(make(), tmp_path / "base")
    model = trained(config, make())
    adapted, base = adapted_logits(model, IDS), base_logits(model, IDS)
    result = export_merged(
        model, source, tmp_path / "out", card=CARD, inspect=lambda folder: verify_merged(folder, adapted, base, IDS)
    )
    assert not failed(result), result.checks
    assert check(result, LOGITS).value < 2e-5
    assert (adapted - base).abs().max() > 1e-2
    assert result.kind == "merged" and result.rank is None and result.modules > 0
    json.dumps(result.to_dict(), allow_nan=False)


def test_the_folder_is_an_ordinary_model_folder(tmp_path):
    base = tiny.llama()
    base.generation_config = GenerationConfig(max_new_tokens=7, eos_token_id=256, pad_token_id=257)
    source = bases.saved(base, tmp_path / "base")
    loaded = load_base(source, dtype="float32")
    result = export_merged(
        trained(everywhere(), loaded.model), source, tmp_path / "out", card=CARD, tokenizer=loaded.tokenizer
    )
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert "chat_template.jinja" in names and "adapter_config.json" not in names
    assert GenerationConfig.from_pretrained(tmp_path / "out").max_new_tokens == 7
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == tiny.CHATML
    assert result.bytes == (tmp_path / "out/model.safetensors").stat().st_size
    card = (tmp_path / "out/README.md").read_text()
    data = ModelCard(card).data.to_dict()
    assert data["base_model_relation"] == "finetune" and data["library_name"] == "transformers"
    assert "lora" in data["tags"] and "merged into" in card and str(tmp_path) not in card
    assert result.serve_lines["vLLM"] == f"vllm serve {tmp_path / 'out'}"


def test_tied_embeddings_stay_tied(tmp_path):
    source = bases.saved(tiny.llama(), tmp_path / "base")
    export_merged(trained(everywhere()), source, tmp_path / "out", card=CARD)
    assert "lm_head.weight" not in load_file(tmp_path / "out/model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, tiny.llama().lm_head.weight)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    "changes",
    [
        dict(target_modules=["q_proj", "lm_head"]),
        dict(target_modules=["embed_tokens"]),
        dict(modules_to_save=["embed_tokens"]),
        dict(trainable_token_indices=[3, 4]),
    ],
)
def test_an_adapter_of_a_tied_layer_is_refused(changes, tmp_path):
    source = bases.saved(tiny.llama(), tmp_path / "base")
    with pytest.raises(NotSupportedError, match="share one weight"):
        export_merged(trained(lora(**changes)), source, tmp_path / "out", card=CARD)
    assert not (tmp_path / "out").exists()


def test_the_precision_is_that_of_the_source_unless_told(tmp_path):
    source = bases.saved(tiny.llama().bfloat16(), tmp_path / "base")
    assert dtype_of(source) == torch.bfloat16
    for dtype, expected in ((None, torch.bfloat16), (torch.float16, torch.float16)):
        model = trained(everywhere(), load_base(source, dtype="float32").model)
        out = tmp_path / str(expected)
        export_merged(model, source, out, card=CARD, dtype=dtype)
        assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {expected}
        assert json.loads((out / "config.json").read_text())["dtype"] == str(expected).removeprefix("torch.")
    with pytest.raises(UsageError, match="int8"):
        export_merged(trained(everywhere()), source, tmp_path / "x", card=CARD, dtype=torch.int8)


def rounded(tmp_path, strength):
    """Merge an adapter of some strength in bf16 and compare."""
    source = bases.saved(tiny.llama().bfloat16(), tmp_path / "base")
    model = trained(everywhere(), load_base(source, dtype="float32").model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter *= strength
    adapted, base = adapted_logits(model, IDS), base_logits(model, IDS)
    export_merged(model, source, tmp_path / "out", card=CARD)
    return verify_merged(tmp_path / "out", adapted, base, IDS)


def test_in_16_bits_the_gap_is_measured_against_the_effect(tmp_path):
    report = rounded(tmp_path, 1.0)
    assert not failed(report), str(report)
    gap = check(report, KL)
    assert 0 < gap.value < gap.limit and "bfloat16" in gap.note and check(report, LOGITS).value > 1e-4


def test_a_weak_adapter_that_16_bits_lose_is_told_or_refused(tmp_path):
    report = rounded(tmp_path, 0.01)
    assert KL in failed(report) or "cannot tell" in check(report, KL).note, str(report)


def test_another_model_in_the_folder_is_found(tmp_path):
    source = bases.saved(tiny.llama(), tmp_path / "base")
    model = trained(everywhere())
    adapted, base = adapted_logits(model, IDS), base_logits(model, IDS)
    export_merged(model, source, tmp_path / "out", card=CARD)
    path = tmp_path / "out/model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(tensors | {name: tensors[name] + 0.01}, path, metadata={"format": "pt"})
    assert failed(verify_merged(tmp_path / "out", adapted, base, IDS)) == {LOGITS, KL}
    save_file({key: value for key, value in tensors.items() if key != name}, path, metadata={"format": "pt"})
    assert "no weight is missing from the files" in failed(verify_merged(tmp_path / "out", adapted, base, IDS))
    path.write_bytes(b"")
    assert failed(verify_merged(tmp_path / "out", adapted, base, IDS)) == {"a fresh process loads it"}


def test_what_cannot_be_merged_is_refused_and_leaves_nothing(tmp_path):
    source = bases.saved(tiny.llama(), tmp_path / "base")
    prompts = trained(PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(NotSupportedError, match="soft prompt"):
        export_merged(prompts, source, tmp_path / "out", card=CARD)
    with pytest.raises(UsageError, match="fp32"):
        export_merged(trained(everywhere(), tiny.llama().bfloat16()), source, tmp_path / "out", card=CARD)
    model = trained(everywhere())
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if "lora_A" in name)[0, 0] = float("nan")
    with pytest.raises(NotSupportedError, match="NaN"):
        export_merged(model, source, tmp_path / "out", card=CARD)
    model = trained(lora(), tiny.llama())
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if "lora_B" in name)[0, 0] = 1e7
    with pytest.raises(NotSupportedError, match="too large"):
        export_merged(model, source, tmp_path / "out", card=CARD, dtype=torch.float16)
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_an_existing_folder_is_kept(tmp_path):
    source = bases.saved(tiny.llama(), tmp_path / "base")
    with pytest.raises(StorageError):
        export_merged(trained(everywhere()), source, tmp_path, card=CARD)


def test_a_gguf_base_is_merged_dequantised(tmp_path):
    file = gguf_files.write(tmp_path / "tiny.gguf", gguf_files.llama(), quantised=True)
    source = locate(str(file))
    result = export_merged(
        trained(everywhere(), load_base(source, dtype="float32").model), source, tmp_path / "out", card=CARD
    )
    assert any("dequantised" in note for note in result.notes)
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())


def test_a_run_is_merged_and_checked_in_a_fresh_process(tmp_path, monkeypatch):
    monkeypatch.undo()  # the only test here that starts the real process
    base = tiny.save(tiny.llama(), tmp_path / "base")
    trained(everywhere()).save_pretrained(tmp_path / "adapter")
    result = open_run(tmp_path / "adapter", base=str(base)).export("merged", tmp_path / "out", dtype="float32")
    assert {check["name"] for check in result.to_dict()["checks"]} >= {LOGITS, KL, IMPORTED}


def test_what_fails_its_verification_does_not_appear(tmp_path, monkeypatch):
    base = tiny.save(tiny.llama(), tmp_path / "base")
    trained(everywhere()).save_pretrained(tmp_path / "adapter")
    monkeypatch.setattr(merged_module, "FP32_LIMIT", 0.0)
    with pytest.raises(VerificationError, match=LOGITS):
        open_run(tmp_path / "adapter", base=str(base)).export("merged", tmp_path / "out")
    assert not (tmp_path / "out").exists()
