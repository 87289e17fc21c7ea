"""A portable LoRA is exactly the trained adapter, in a form that plain PEFT reads with no key too many or too few."""

from __future__ import annotations

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import T5Config, T5ForConditionalGeneration

from budwood.errors import AdapterError, NotSupportedError, StorageError
from budwood.export.foreign import inspect_adapter
from budwood.export.logits import adapted_logits, base_logits, probe_inputs
from budwood.export.portable import export_lora
from budwood.export.static import static_checks
from budwood.tuning.factors import lora_factors
from tests import tiny
from tests.export.trained import CARD, lora, trained

IDS = probe_inputs(256)


def t5():
    torch.manual_seed(0)
    sizes = dict(d_model=32, d_ff=48, num_layers=2, num_heads=4, d_kv=8, vocab_size=259)
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()


KEYS_OF_2023 = {
    "peft_type",
    "task_type",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "fan_in_fan_out",
    "bias",
    "modules_to_save",
    "layers_to_transform",
}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PATTERNS = dict(rank_pattern={"v_proj": 3, r"layers\.1\.mlp\.down_proj": 7}, alpha_pattern={"down_proj": 5})
GPT2 = dict(fan_in_fan_out=True)
CASES = {
    "plain": (tiny.llama, lora(target_modules=ALL, lora_alpha=16)),
    "mixed ranks and alphas": (tiny.llama, lora(target_modules=ALL, **PATTERNS)),
    "rank-stabilised": (tiny.llama, lora(target_modules=ALL, use_rslora=True, **PATTERNS)),
    "one layer": (tiny.llama, lora(target_modules=ALL, layers_to_transform=[1])),
    "uneven": (tiny.llama, lora(target_modules=["layers.0.self_attn.q_proj", "layers.1.mlp.up_proj"])),
    "conv1d": (tiny.gpt2, lora(target_modules=["c_attn", "c_fc"], **GPT2)),
    "conv1d, shared leaf": (tiny.gpt2, lora(target_modules=["attn.c_proj"], **GPT2)),
    "encoder and decoder": (t5, lora(target_modules=["q", "v", "wi"], task_type="SEQ_2_SEQ_LM")),
    "untied head": (lambda: tiny.llama(tie_word_embeddings=False), lora(target_modules=["q_proj", "lm_head"])),
}


def export(model, out, **changes):
    return export_lora(model, out, **({"base_id": "org/tiny", "revision": None, "card": CARD} | changes))


def reload(base, folder) -> PeftModel:
    """Load with plain PEFT; its warning about missing keys is an error here, as every warning is."""
    model = PeftModel.from_pretrained(base, str(folder))
    result = model.load_adapter(str(folder), "default")
    assert not result.missing_keys and not result.unexpected_keys
    return model


@pytest.mark.parametrize("case", CASES)
def test_plain_peft_gives_the_trained_models_answers(case, tmp_path):
    make, config = CASES[case]
    model = trained(config, make())
    result = export(model, tmp_path / "out")
    loaded = reload(make(), tmp_path / "out")
    expected = adapted_logits(model, IDS)
    assert (adapted_logits(loaded, IDS) - expected).abs().max() < 1e-6 * max(1, expected.abs().max())
    assert (base_logits(model, IDS) - expected).abs().max() > 1e-2
    before, after = lora_factors(model), lora_factors(loaded)
    assert before.keys() == after.keys() and len(before) == result.modules
    assert all(torch.allclose(b @ a, after[name].B @ after[name].A, atol=1e-6) for name, (a, b) in before.items())
    info = inspect_adapter(tmp_path / "out")
    assert all(check.ok for check in static_checks(info.config, info.keys))


def test_the_configuration_leaves_nothing_to_interpret(tmp_path):
    result = export(trained(lora(r=9, lora_alpha=3, use_rslora=True)), tmp_path / "out", revision="abc")
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert config.keys() <= KEYS_OF_2023
    assert config["r"] == config["lora_alpha"] == result.rank == 16
    assert config["target_modules"] == ["q_proj"] and config["modules_to_save"] is None and config["bias"] == "none"
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/tiny", "abc")
    shapes = {tuple(t.shape) for t in load_file(tmp_path / "out/adapter_model.safetensors").values()}
    assert shapes == {(16, 32), (32, 16)}


@pytest.mark.parametrize(
    ("make", "config", "modules", "layers"),
    [
        (tiny.llama, lora(target_modules=["q_proj", "v_proj"]), ["q_proj", "v_proj"], None),
        (tiny.llama, lora(layers_to_transform=[1]), ["q_proj"], [1]),
        (tiny.gpt2, lora(target_modules=["attn.c_proj"], **GPT2), ["attn.c_proj"], None),
    ],
)
def test_target_modules_are_as_short_as_they_can_be(make, config, modules, layers, tmp_path):
    export(trained(config, make()), tmp_path / "out")
    written = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert (written["target_modules"], written.get("layers_to_transform")) == (modules, layers)


def test_the_task_type_is_found_where_the_user_gave_none(tmp_path):
    export(trained(lora(task_type=None)), tmp_path / "out")
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["task_type"] == "CAUSAL_LM"


def test_the_folder_holds_tokenizer_and_template_and_neither_pickles_nor_added_tokens(tmp_path):
    export(trained(lora()), tmp_path / "out", tokenizer=tiny.tokenizer())
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"tokenizer.json", "chat_template.jinja", "README.md"} <= names
    assert "added_tokens.json" not in names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pkl"))]


def test_an_export_of_an_export_is_the_same_file(tmp_path):
    export(trained(lora(use_rslora=True, r=8)), tmp_path / "one")
    export(reload(tiny.llama(), tmp_path / "one"), tmp_path / "two")
    assert (tmp_path / "one/adapter_model.safetensors").read_bytes() == (
        tmp_path / "two/adapter_model.safetensors"
    ).read_bytes()


def test_the_model_is_left_as_it_was(tmp_path):
    model = trained(lora())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    export(model, tmp_path / "out")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_sixteen_bits_on_request(tmp_path):
    export(trained(lora()), tmp_path / "out", dtype=torch.bfloat16)
    tensors = load_file(tmp_path / "out/adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_the_result_says_what_to_do(tmp_path):
    result = export(trained(lora()), tmp_path / "out")
    assert result.bytes == (tmp_path / "out/adapter_model.safetensors").stat().st_size
    assert "--max-lora-rank 8" in result.serve_lines["vLLM"] and str(tmp_path / "out") in result.serve_lines["vLLM"]
    assert any("padded" in note for note in result.notes)
    json.dumps(result.to_dict(), allow_nan=False)
    card = (tmp_path / "out/README.md").read_text()
    assert "vllm serve org/tiny" in card and str(tmp_path) not in card


def test_gpt2_is_not_promised_to_vllm(tmp_path):
    result = export(trained(lora(target_modules=["c_attn"], **GPT2), tiny.gpt2()), tmp_path / "out")
    assert "vLLM" not in result.serve_lines
    assert any("gpt2 without LoRA" in note for note in result.notes)


def test_an_adapter_that_changes_nothing_is_told(tmp_path):
    model = trained(lora())
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.zeros_(parameter)
    assert any("changes nothing" in note for note in export(model, tmp_path / "out").notes)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_a_tied_output_layer_is_refused(tmp_path):
    model = trained(lora(target_modules=["q_proj", "lm_head"]))
    with pytest.raises(NotSupportedError, match=r"lm_head.*tied"):
        export(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_rank_no_server_holds_is_refused(tmp_path):
    with pytest.raises(NotSupportedError, match="rank 600"):
        export(trained(lora(r=600)), tmp_path / "out")


@pytest.mark.parametrize(
    ("value", "dtype", "action"),
    [(float("nan"), torch.float32, "train again"), (1e6, torch.float16, "bfloat16")],
)
def test_numbers_that_cannot_be_stored_are_refused_and_leave_nothing(value, dtype, action, tmp_path):
    model = trained(lora())
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if "lora_A" in name)[0, 0] = value
    with pytest.raises(AdapterError, match="q_proj") as refused:
        export(model, tmp_path / "out", dtype=dtype)
    assert action in refused.value.action
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept(tmp_path):
    with pytest.raises(StorageError):
        export(trained(lora()), tmp_path)
