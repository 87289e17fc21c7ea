"""Adapters made elsewhere: read as data, and never loaded so that part of them is dropped in silence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PromptTuningConfig, VeraConfig
from safetensors.torch import load_file, save_file

from budwood.errors import AdapterError
from budwood.export.foreign import check_against_base, inspect_adapter, load_foreign
from budwood.export.logits import adapted_logits, probe_inputs
from tests import tiny
from tests.export.trained import lora, trained

IDS = probe_inputs(256)
NAMES = [name for name, _ in tiny.llama().named_modules()]


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "sound"
    trained(lora(target_modules=["q_proj", "v_proj"])).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(sound, tmp_path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "adapter"))


def configure(folder: Path, **changes) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rename(folder: Path, new_name) -> None:
    path = folder / "adapter_model.safetensors"
    kept = {new_name(key): tensor for key, tensor in load_file(path).items() if new_name(key)}
    save_file(kept, path, metadata={"format": "pt"})


def problems(folder: Path) -> dict[str, str]:
    return {problem.name: problem.blocks for problem in inspect_adapter(folder).problems}


def test_a_sound_folder_is_read_and_loaded(folder):
    configure(folder, base_model_name_or_path="org/base", revision="abc")
    info = inspect_adapter(folder)
    assert (info.peft_type, info.base_id, info.revision, info.problems) == ("LORA", "org/base", "abc", ())
    assert len(info.keys) == 8 and info.bytes > 0
    assert info.keys["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"] == (4, 32)
    assert check_against_base(info, NAMES) == []
    reference = trained(lora(target_modules=["q_proj", "v_proj"]))
    assert torch.equal(adapted_logits(load_foreign(tiny.llama(), folder), IDS), adapted_logits(reference, IDS))


@pytest.mark.parametrize("config", [PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"), None])
def test_other_kinds_load_too(config, tmp_path):
    model = trained(config or VeraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    model.save_pretrained(tmp_path / "adapter")
    loaded = load_foreign(tiny.llama(), tmp_path / "adapter")
    assert torch.equal(adapted_logits(loaded, IDS), adapted_logits(model, IDS))


def test_mixed_ranks_and_rslora_are_no_problem(tmp_path):
    trained(lora(use_rslora=True, rank_pattern={"layers.1.self_attn.q_proj": 2})).save_pretrained(tmp_path / "a")
    assert problems(tmp_path / "a") == {}
    load_foreign(tiny.llama(), tmp_path / "a")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: shutil.rmtree(f), "is no folder"),
        (lambda f: (f / "adapter_config.json").unlink(), "cannot read"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "is not JSON"),
        (lambda f: (f / "adapter_config.json").write_bytes(b"\xff\xfe\xff"), "is not JSON"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "names no peft_type"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
        (lambda f: (f / "adapter_model.safetensors").rename(f / "adapter_model.bin"), "pickle"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"\x09"), "cannot be read"),
        (
            lambda f: (f / "adapter_model.safetensors").write_bytes(
                (f / "adapter_model.safetensors").read_bytes()[:-100]
            ),
            "cannot be read",
        ),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_so(spoil, message, folder):
    spoil(folder)
    with pytest.raises(AdapterError, match=message):
        inspect_adapter(folder)


def test_a_pickle_is_not_opened_and_the_way_to_convert_it_is_told(folder):
    weights = folder / "adapter_model.safetensors"
    weights.unlink()
    (folder / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(AdapterError) as refused:
        load_foreign(tiny.llama(), folder)
    assert "weights_only=True" in refused.value.action


@pytest.mark.parametrize(
    ("changes", "name", "blocks"),
    [
        ({"peft_type": "LORAX"}, "unknown_type", "load"),
        ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "names_code", "load"),
        ({"auto_mapping": {"base_model_class": "X", "parent_library": "antigravity"}}, "auto_mapping", "nothing"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save", "export"),
    ],
)
def test_what_a_configuration_asks_for_is_looked_at_before_anything_is_loaded(changes, name, blocks, folder):
    configure(folder, **changes)
    assert problems(folder) == {name: blocks}
    if blocks == "load":
        with pytest.raises(AdapterError):
            load_foreign(tiny.llama(), folder)
    if blocks == "export":
        inspect_adapter(folder).require("load")
        with pytest.raises(AdapterError, match="budwood export --to merged"):
            inspect_adapter(folder).require("export")


def test_a_missing_prefix_is_an_error_although_peft_would_load_it(folder):
    rename(folder, lambda key: key.removeprefix("base_model.model."))
    assert problems(folder) == {"wrong_prefix": "load"}
    with pytest.raises(AdapterError, match=r"8 of 8 keys lack the prefix"):
        load_foreign(tiny.llama(), folder)


def test_keys_that_match_nothing_name_the_nearest_module(folder):
    rename(folder, lambda key: key.replace("model.layers", "decoder.layers"))
    (problem,) = check_against_base(inspect_adapter(folder), NAMES)
    assert problem.name == "no_match" and "'model.layers.0.self_attn.q_proj'" in problem.text
    with pytest.raises(AdapterError, match="none of the 4 adapted modules"):
        load_foreign(tiny.llama(), folder)


def test_keys_that_match_in_part_are_counted(folder):
    rename(folder, lambda key: key.replace("layers.1", "layers.7"))
    (problem,) = check_against_base(inspect_adapter(folder), NAMES)
    assert problem.name == "partial_match" and problem.text.startswith("2 of 4")


def test_a_dropped_tensor_is_an_error(folder):
    rename(folder, lambda key: "" if "layers.1.self_attn.v_proj.lora_B" in key else key)
    with pytest.raises(AdapterError, match="1 parameters have no tensor"):
        load_foreign(tiny.llama(), folder)


def test_a_tensor_without_a_place_is_an_error(folder):
    configure(folder, target_modules=["q_proj"])
    with pytest.raises(AdapterError, match="4 tensors have no place"):
        load_foreign(tiny.llama(), folder)


def test_another_base_is_an_error(folder):
    with pytest.raises(AdapterError, match="size mismatch"):
        load_foreign(tiny.llama(hidden_size=64), folder)


def test_an_empty_file_is_an_error(folder):
    rename(folder, lambda key: "")
    with pytest.raises(AdapterError, match="holds no tensor"):
        load_foreign(tiny.llama(), folder)
