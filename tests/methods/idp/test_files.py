"""A bank as a folder: PEFT reads each prompt, everything comes back, and an error names the prompt."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from peft import LoraConfig, PromptEncoderConfig, get_peft_model
from torch.testing import assert_close

from budwood.errors import AdapterError, BaseMismatchError, NotSupportedError, StorageError, UsageError
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.selectors import AttentionSelector, LikelihoodSelector, RouterSelector
from budwood.tuning.attach import quiet_peft
from tests import tiny
from tests.methods.idp.banks import TEXTS, batch, make_bank, peft_model, plain_logits, save_prompts, vectors

CONTEXTS = [[i, 2 * i, 3, 200 - i] for i in range(60)]


@pytest.mark.parametrize(
    "selector",
    [LikelihoodSelector(tokens=4), AttentionSelector(layers=(1,)), AttentionSelector.paper(), RouterSelector()],
    ids=["likelihood", "attention", "paper", "router"],
)
def test_everything_comes_back(selector, tmp_path):
    bank = make_bank(tmp_path, selector=selector, fingerprint="f" * 64)
    bank.calibrate(CONTEXTS)
    bank.save(tmp_path / "saved")
    again = PromptBank.load(tiny.llama(), tmp_path / "saved", fingerprint="f" * 64)
    assert again.names == bank.names == ["p0", "p1", "p2"]
    assert again.selector == bank.selector and again.fingerprint == bank.fingerprint
    assert torch.equal(again.scores(*batch()), bank.scores(*batch()))
    assert torch.equal(again(*batch(), [0, 1, 2, 1]).logits, bank(*batch(), [0, 1, 2, 1]).logits)


def test_each_prompt_is_an_ordinary_peft_adapter(tmp_path):  # property 15
    bank = make_bank(tmp_path)
    bank.save(tmp_path / "saved")
    for number, name in enumerate(bank.names):
        model = peft_model(bank, tmp_path / "saved" / "bank" / name)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([TEXTS[0]])).logits[0, -len(TEXTS[0]) :]
        assert_close(logits, plain_logits(bank, number, TEXTS[0]), rtol=0, atol=1e-5)


def test_the_order_is_kept_and_names_that_sort_otherwise(tmp_path):
    places = save_prompts(tmp_path)
    bank = PromptBank.from_adapters(tiny.llama(), [places[2], places[0], places[1]])
    bank.save(tmp_path / "saved")
    assert PromptBank.load(tiny.llama(), tmp_path / "saved").names == ["p2", "p0", "p1"]


def test_p_tuning_and_runs_are_read_too(tmp_path):
    config = PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=16)
    with quiet_peft():
        model = get_peft_model(tiny.llama(), config).eval()
        model.save_pretrained(tmp_path / "run" / "adapter", save_embedding_layers=False)
    bank = PromptBank.from_adapters(tiny.llama(), [tmp_path / "run"])
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([TEXTS[0]])).logits[:, 4:]
    assert bank.names == ["run"]
    assert_close(bank(torch.tensor([TEXTS[0]])).logits, wanted, rtol=0, atol=1e-5)
    bank.save(tmp_path / "saved")
    assert torch.equal(vectors(PromptBank.load(tiny.llama(), tmp_path / "saved"), 0), vectors(bank, 0))


def test_a_saved_bank_is_whole_and_replaced_only_if_asked(tmp_path):
    bank = make_bank(tmp_path)
    bank.save(tmp_path / "saved")
    with pytest.raises(StorageError, match="exists already"):
        bank.save(tmp_path / "saved")
    bank.save(tmp_path / "saved", replace=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="no prompt bank"):
        bank.save(tmp_path / "other", replace=True)
    files = {path.relative_to(tmp_path / "saved").as_posix() for path in (tmp_path / "saved").rglob("*.*")}
    parts = ("adapter_config.json", "adapter_model.safetensors")
    assert files == {"selector.json"} | {f"bank/p{i}/{part}" for i in range(3) for part in parts}
    assert not list(tmp_path.glob(".partial-*"))


def damage(folder, kind):
    if kind == "missing":
        shutil.rmtree(folder)
    elif kind == "no weights":
        (folder / "adapter_model.safetensors").unlink()
    elif kind == "cut weights":
        (folder / "adapter_model.safetensors").write_bytes(b"\x10\x00\x00")
    elif kind == "bad configuration":
        (folder / "adapter_config.json").write_text("{")
    elif kind == "other length":
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | {"num_virtual_tokens": 77}))
    else:
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | {"peft_type": "NOT_A_TUNER"}))


@pytest.mark.parametrize(
    "kind", ["missing", "no weights", "cut weights", "bad configuration", "other length", "unknown tuner"]
)
def test_a_missing_or_damaged_prompt_is_named(kind, tmp_path):
    make_bank(tmp_path).save(tmp_path / "saved")
    damage(tmp_path / "saved" / "bank" / "p1", kind)
    with pytest.raises(AdapterError, match="'p1'"):
        PromptBank.load(tiny.llama(), tmp_path / "saved")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"prompts": [], "selector": {"name": "likelihood"}}', '{"format": 9}']
)
def test_a_damaged_selector_file_is_an_adapter_error(text, tmp_path):
    make_bank(tmp_path).save(tmp_path / "saved")
    (tmp_path / "saved" / "selector.json").write_text(text)
    with pytest.raises(AdapterError, match=r"selector\.json"):
        PromptBank.load(tiny.llama(), tmp_path / "saved")


def test_a_later_format_and_no_bank_at_all(tmp_path):
    make_bank(tmp_path).save(tmp_path / "saved")
    path = tmp_path / "saved" / "selector.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(AdapterError, match="newer budwood"):
        PromptBank.load(tiny.llama(), tmp_path / "saved")
    with pytest.raises(AdapterError, match="no prompt bank"):
        PromptBank.load(tiny.llama(), tmp_path)


def test_another_width_or_depth_is_refused_with_the_prompts_name(tmp_path):  # property 15
    places = save_prompts(tmp_path)
    for base in (tiny.llama(hidden_size=64), tiny.llama(num_hidden_layers=3)):
        with pytest.raises(BaseMismatchError, match="'p0'"):
            PromptBank.from_adapters(base, places, force=True)


def test_another_base_is_refused_by_fingerprint_or_by_name(tmp_path):  # property 15
    places = save_prompts(tmp_path)
    (places[1] / "budwood.json").write_text(json.dumps({"fingerprint": "a" * 64}))
    with pytest.raises(BaseMismatchError, match="'p1' was made on aaaa"):
        PromptBank.from_adapters(tiny.llama(), places, fingerprint="b" * 64)
    PromptBank.from_adapters(tiny.llama(), places, fingerprint="a" * 64)
    PromptBank.from_adapters(tiny.llama(), places, fingerprint="b" * 64, force=True)
    config = json.loads((places[2] / "adapter_config.json").read_text())
    (places[2] / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "some/base"}))
    base = tiny.llama()
    base.name_or_path = "other/base"
    with pytest.raises(BaseMismatchError, match="'p2' was made on some/base"):
        PromptBank.from_adapters(base, places)
    bank = PromptBank.from_adapters(base, places, force=True, fingerprint="b" * 64)
    bank.save(tmp_path / "saved")
    with pytest.raises(BaseMismatchError, match="was made on bbbb"):
        PromptBank.load(tiny.llama(), tmp_path / "saved", fingerprint="c" * 64)


def test_what_is_no_prompt_and_names_that_clash_are_refused(tmp_path):
    with quiet_peft():
        lora = get_peft_model(tiny.llama(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
        lora.save_pretrained(tmp_path / "lora", save_embedding_layers=False)
    places = save_prompts(tmp_path, (3, 4))
    with pytest.raises(NotSupportedError, match="'lora' is an adapter of kind lora"):
        PromptBank.from_adapters(tiny.llama(), [*places, tmp_path / "lora"])
    with pytest.raises(UsageError, match="two prompts are called 'p0'"):
        PromptBank.from_adapters(tiny.llama(), [places[0], places[0]])
    with pytest.raises(UsageError, match="without prompts"):
        PromptBank.from_adapters(tiny.llama(), [])
    bank = PromptBank.from_adapters(tiny.llama(), places)
    with pytest.raises(UsageError, match="'p1'"):
        bank.add(places[1])
    for name in ("a/b", ".."):
        with pytest.raises(AdapterError, match="no name of a folder"):
            bank.add(places[1], name=name)
    assert bank.names == ["p0", "p1"]
