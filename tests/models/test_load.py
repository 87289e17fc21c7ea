"""Loading bases: every kind of model, frozen and whole; and every way in which it can fail."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as t

from budwood.errors import ModelError, OutOfMemoryError, UsageError
from budwood.models import Base, empty_model, load_base, load_config, load_tokenizer, locate
from budwood.models.borders import loading_errors
from tests import tiny
from tests.models.test_sites import CONFIGS


@pytest.fixture
def folder(tmp_path):
    return tiny.save(tiny.llama(), tmp_path / "base")


def change(folder, **values):
    """Change the configuration of a saved model; None removes a key."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_a_base_is_whole_frozen_and_in_evaluation_mode(folder):
    base = load_base(str(folder), device="cpu", dtype="float32")
    assert isinstance(base, Base)
    assert not base.model.training
    assert not any(parameter.requires_grad for parameter in base.model.parameters())
    ids = torch.tensor([base.tokenizer("hello")["input_ids"]])
    assert torch.equal(base.model(ids).logits, tiny.llama()(ids).logits)
    assert base.model.config._attn_implementation == "sdpa"


def test_the_output_streams_stay_clean(folder, capfd):
    load_base(str(folder), device="cpu")
    assert capfd.readouterr() == ("", "")


def test_transformers_switches_are_put_back(folder):
    from transformers.utils import logging

    before = logging.get_verbosity()
    load_base(str(folder), device="cpu")
    assert logging.is_progress_bar_enabled()
    assert logging.get_verbosity() == before


@pytest.mark.parametrize(("dtype", "expected"), [("bf16", torch.bfloat16), (torch.float16, torch.float16)])
def test_precision(folder, dtype, expected):
    model = load_base(locate(str(folder)), device="cpu", dtype=dtype).model
    assert {parameter.dtype for parameter in model.parameters()} == {expected}


def test_attention(folder):
    assert load_base(str(folder), device="cpu", attention="eager").model.config._attn_implementation == "eager"
    with pytest.raises(UsageError, match=r"(?s)no attention called 'eagre'.*did you mean 'eager'"):
        load_base(str(folder), device="cpu", attention="eagre")
    with pytest.raises(ModelError, match=r"(?s)cannot be loaded: ImportError.*install the package"):
        load_base(str(folder), device="cpu", attention="flash_attention_2")


KINDS = {
    "llama": t.LlamaForCausalLM,
    "gpt2": t.GPT2LMHeadModel,
    "bert": t.BertForMaskedLM,
    "t5": t.T5ForConditionalGeneration,
    "vit": t.ViTForImageClassification,
    "whisper": t.WhisperForConditionalGeneration,
}


@pytest.mark.parametrize("name", KINDS)
def test_the_class_is_the_one_that_was_saved(tmp_path, name):
    torch.manual_seed(0)
    made = KINDS[name](CONFIGS[name])
    made.save_pretrained(tmp_path)
    if name != "vit":
        tiny.tokenizer().save_pretrained(tmp_path)
    base = load_base(str(tmp_path), device="cpu", dtype="float32")
    assert type(base.model) is KINDS[name]
    assert (base.tokenizer is None) == (name == "vit")
    for key, weight in made.state_dict().items():
        assert torch.equal(base.model.state_dict()[key], weight)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama", t.LlamaForCausalLM),
        ("t5", t.T5ForConditionalGeneration),
        ("bart", t.BartForConditionalGeneration),
        ("vit", t.ViTModel),
    ],
)
def test_without_a_class_in_the_configuration(tmp_path, name, kind):
    kind(CONFIGS[name]).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    change(tmp_path, architectures=None)
    assert type(load_base(str(tmp_path), device="cpu").model) is kind
    assert type(empty_model(locate(str(tmp_path)))) is kind


@pytest.mark.parametrize("name", KINDS)
def test_an_empty_model_has_the_shapes_and_no_weights(tmp_path, name):
    made = KINDS[name](CONFIGS[name])
    made.save_pretrained(tmp_path)
    empty = empty_model(locate(str(tmp_path)))
    assert {parameter.device.type for parameter in empty.parameters()} == {"meta"}
    shapes = {key: weight.shape for key, weight in made.named_parameters()}
    assert {key: weight.shape for key, weight in empty.named_parameters()} == shapes


def test_weights_that_are_missing(folder):
    change(folder, num_hidden_layers=3)
    with pytest.raises(ModelError, match=r"lacks 9 weights of LlamaForCausalLM, first model\.layers\.2"):
        load_base(str(folder), device="cpu")


def test_weights_that_are_too_many(folder, caplog):
    change(folder, num_hidden_layers=1)
    load_base(str(folder), device="cpu")
    assert "9 weights are not used, first model.layers.1" in caplog.text


def test_weights_of_another_shape(folder):
    change(folder, intermediate_size=64)
    with pytest.raises(ModelError, match="cannot be loaded: RuntimeError"):
        load_base(str(folder), device="cpu")


def test_weights_that_are_cut_off(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be loaded: SafetensorError"):
        load_base(str(folder), device="cpu")


def test_weights_that_are_none(folder):
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_base(str(folder), device="cpu")


@pytest.mark.parametrize("text", ["{", "[]", '"a"', ""])
def test_a_damaged_configuration(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        load_config(locate(str(folder)))


def test_a_configuration_with_bad_values(folder):
    change(folder, hidden_size="many")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_base(str(folder), device="cpu")


@pytest.mark.parametrize(("kind", "says"), [("lama", "did you mean 'llama'?"), (None, "knows no model type None")])
def test_an_unknown_architecture(folder, kind, says):
    change(folder, model_type=kind)
    with pytest.raises(ModelError) as caught:
        load_base(str(folder), device="cpu")
    assert says in str(caught.value)


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "budwood_own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def own_code(folder, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    (folder / "own.py").write_text(OWN_CODE)
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    change(folder, model_type="budwood_own", architectures=["OwnModel"], auto_map=auto_map)
    return folder


def test_own_code_needs_leave(own_code):
    source = locate(str(own_code))
    for load in (load_base, load_config, load_tokenizer, empty_model):
        with pytest.raises(ModelError, match=r"(?s)needs code of its own.*--trust-remote-code"):
            load(source)


def test_own_code_with_leave(own_code):
    source = locate(str(own_code))
    base = load_base(source, device="cpu", trust_remote_code=True)
    assert type(base.model).__name__ == "OwnModel"
    assert type(empty_model(source, trust_remote_code=True)).__name__ == "OwnModel"


def test_own_code_is_not_used_for_a_known_model(own_code):
    change(own_code, model_type="llama", architectures=["LlamaForCausalLM"])
    (own_code / "own.py").write_text("raise SystemExit('ran')")
    for trust in (False, True):
        base = load_base(str(own_code), device="cpu", trust_remote_code=trust)
        assert type(base.model) is t.LlamaForCausalLM


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
)
def test_memory_that_runs_out(folder, monkeypatch, error):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr(t.LlamaForCausalLM, "from_pretrained", fail)
    with pytest.raises(OutOfMemoryError, match="not enough memory to load"):
        load_base(str(folder), device="cpu")


def test_our_own_errors_pass_the_border():
    with pytest.raises(UsageError), loading_errors("a model"):
        raise UsageError("ours")


def test_a_pad_token_is_kept(folder):
    assert load_tokenizer(locate(str(folder))).pad_token == "<pad>"


def test_without_a_pad_token_the_end_token_serves(folder):
    tokenizer = tiny.tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    assert load_tokenizer(locate(str(folder))).pad_token == "<|im_end|>"


def test_a_pad_token_without_an_embedding_is_replaced(folder):
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert tokenizer.pad_token_id == 259
    tokenizer.save_pretrained(folder)
    base = load_base(str(folder), device="cpu")
    assert base.tokenizer.pad_token == "<|im_end|>"
    assert base.model.get_input_embeddings().weight.shape[0] == 259


def test_a_missing_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    for load in (load_tokenizer, load_base):
        with pytest.raises(ModelError, match="has no tokenizer"):
            load(locate(str(folder)))


def test_a_damaged_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"the tokenizer in .* cannot be loaded"):
        load_tokenizer(locate(str(folder)))
