"""GGUF files: dequantised once, exactly, into an ordinary folder; and every kind of bad file."""

from __future__ import annotations

import json
import logging
import shutil
import struct

import gguf
import pytest
import torch
from transformers import AutoTokenizer
from transformers import modeling_gguf_pytorch_utils as loader

from budwood.errors import ModelError, StorageError
from budwood.models import fingerprint_file, load_base, locate
from budwood.models import gguf as conversion
from budwood.models.gguf_header import read_header
from budwood.storage import cache_dir
from tests.models import gguf_files

IDS = torch.tensor([[72, 5, 66, 259, 260, 3]])


@pytest.fixture
def file(tmp_path):
    return gguf_files.write(tmp_path / "tiny.gguf", gguf_files.llama())


def test_the_weights_come_back_exactly(file):
    source = locate(str(file))
    base = load_base(source, device="cpu", dtype="float32")
    assert torch.equal(base.model(IDS).logits, gguf_files.llama()(IDS).logits)
    assert source.folder == cache_dir() / "gguf" / fingerprint_file(file)
    assert source.fingerprint == fingerprint_file(file)


def test_quantised_weights_come_back_as_the_format_defines_them(tmp_path):
    model = gguf_files.llama()
    file = gguf_files.write(tmp_path / "q8.gguf", model, quantised=True)
    base = load_base(str(file), device="cpu", dtype="float32")
    kind = gguf.GGMLQuantizationType.Q8_0
    weight = model.model.layers[1].mlp.up_proj.weight.detach().numpy()
    expected = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind))
    assert torch.equal(base.model.model.layers[1].mlp.up_proj.weight, expected)
    assert not torch.equal(expected, torch.from_numpy(weight))


def test_the_base_can_be_saved_and_loaded_as_a_folder(file, tmp_path):
    base = load_base(str(file), device="cpu", dtype="float32")
    base.model.save_pretrained(tmp_path / "saved")
    base.tokenizer.save_pretrained(tmp_path / "saved")
    again = load_base(str(tmp_path / "saved"), device="cpu", dtype="float32")
    assert torch.equal(again.model(IDS).logits, base.model(IDS).logits)


def test_no_trace_of_the_quantisation_is_left(file):
    folder = locate(str(file)).folder
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"
    assert not config.keys() & {"quantization_config", "_name_or_path", "_model_name_or_path"}
    assert "gguf" not in (folder / "config.json").read_text() + (folder / "tokenizer_config.json").read_text()


def test_tokenizer_template_and_end(file):
    base = load_base(str(file), device="cpu")
    assert base.tokenizer.chat_template == gguf_files.tiny.CHATML
    assert (base.tokenizer.eos_token, base.tokenizer.pad_token) == ("<|im_end|>", "<pad>")
    assert base.tokenizer.bos_token == "<|im_start|>"
    assert base.tokenizer.get_vocab() == {word: i for i, word in enumerate(gguf_files.WORDS)}
    assert base.tokenizer.model_max_length == 256
    assert base.model.generation_config.eos_token_id == gguf_files.WORDS.index("<|im_end|>")
    text = base.tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert base.tokenizer.decode(base.tokenizer(text)["input_ids"]) == text


def test_an_end_of_turn_ends_too(tmp_path):
    turn = gguf_files.WORDS.index("<|eot|>")
    file = gguf_files.write(tmp_path / "a.gguf", gguf_files.llama(), extra={"tokenizer.ggml.eot_token_id": turn})
    model = load_base(str(file), device="cpu").model
    ends = [gguf_files.WORDS.index("<|im_end|>"), turn]
    assert model.generation_config.eos_token_id == model.config.eos_token_id == ends


@pytest.mark.parametrize(("pre", "words"), [("smollm", ["a", "ĠĠ", "1", "2"]), ("gpt-2", ["a", "Ġ", "Ġ", "1", "2"])])
def test_digits_are_split_as_the_vocabulary_wants(tmp_path, pre, words):
    source = locate(str(gguf_files.write(tmp_path / "a.gguf", gguf_files.llama(), pre=pre)))
    assert load_base(source, device="cpu").tokenizer.tokenize("a  12") == words
    assert AutoTokenizer.from_pretrained(source.folder).tokenize("a  12") == words


def test_it_is_converted_once(file, monkeypatch, tmp_path):
    first = locate(str(file))
    monkeypatch.setattr(conversion, "_convert", None)
    assert locate(str(file)) == first
    shutil.copy(file, tmp_path / "twin.gguf")
    assert locate(str(tmp_path / "twin.gguf")).folder == first.folder


def test_a_damaged_folder_in_the_cache_is_made_again(file):
    folder = locate(str(file)).folder
    (folder / "model.safetensors").unlink()
    assert (locate(str(file)).folder / "model.safetensors").exists()


def test_a_folder_of_an_older_conversion_is_made_again(file, monkeypatch):
    folder = locate(str(file)).folder
    (folder / "tokenizer.json").write_text("old")
    assert (locate(str(file)).folder / "tokenizer.json").read_text() == "old"
    monkeypatch.setattr(conversion, "CONVERSION", conversion.CONVERSION + 1)
    assert (locate(str(file)).folder / "tokenizer.json").read_text() != "old"


def test_another_process_may_be_faster(file, monkeypatch):
    convert = conversion._convert

    def slow(source, header, made):
        convert(source, header, made)
        if not folder.exists():  # the other process ends while this one is at work
            shutil.copytree(made, folder)
            (folder / "theirs").touch()

    folder = cache_dir() / "gguf" / fingerprint_file(file)
    monkeypatch.setattr(conversion, "_convert", slow)
    assert locate(str(file)).folder == folder
    assert (folder / "theirs").exists()
    assert list(folder.parent.iterdir()) == [folder]


def test_a_failure_leaves_nothing_behind(file, monkeypatch):
    monkeypatch.setattr(conversion, "_check", _fail)
    with pytest.raises(ZeroDivisionError):
        locate(str(file))
    assert list((cache_dir() / "gguf").iterdir()) == []


def _fail(*args):
    raise ZeroDivisionError


def test_it_logs_and_draws_no_bars(file, capfd, caplog):
    before = gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm
    with caplog.at_level(logging.INFO, logger="budwood"):
        locate(str(file))
    assert "this is done once" in caplog.text
    assert capfd.readouterr() == ("", "")
    assert (gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm) == before


def test_a_full_disk_is_seen_before_the_work(file, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(StorageError, match="the model in fp32 needs"):
        locate(str(file))


def test_the_header(file):
    header = read_header(file)
    assert header.architecture == "llama"
    assert header.values["tokenizer.ggml.pre"] == "smollm"
    assert header.values["llama.attention.head_count"] == 4
    assert header.values["tokenizer.ggml.add_bos_token"] is False
    assert header.weights == sum(parameter.numel() for parameter in gguf_files.llama().parameters())
    assert file.stat().st_size - 32 < header.size <= file.stat().st_size


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_is_cut_off(file, share):
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelError, match=r"is not a GGUF file|cannot be read|is cut off"):
        locate(str(file))


@pytest.mark.parametrize("at", [4, 8, 16, 24, 40, 60])
def test_a_head_of_garbage(file, at):
    data = bytearray(file.read_bytes())
    data[at : at + 8] = b"\xff" * 8
    file.write_bytes(data)
    with pytest.raises(ModelError, match="cannot be read"):
        locate(str(file))


def test_another_file_by_that_name(file):
    file.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelError, match="is not a GGUF file"):
        locate(str(file))


def test_a_big_endian_file(file):
    data = file.read_bytes()
    file.write_bytes(data[:4] + struct.pack(">I", 3) + data[8:])
    with pytest.raises(ModelError, match="version 50331648"):
        locate(str(file))


def test_an_unknown_architecture(tmp_path):
    file = gguf_files.write(tmp_path / "a.gguf", gguf_files.llama(), architecture="lamma")
    with pytest.raises(ModelError, match=r"architecture lamma\) cannot be loaded"):
        locate(str(file))


def test_a_tensor_that_is_missing(tmp_path):
    file = gguf_files.write(tmp_path / "a.gguf", gguf_files.llama(), leave_out="blk.1.ffn_up")
    with pytest.raises(ModelError, match=r"lacks 1 tensors, first model\.layers\.1\.mlp\.up_proj"):
        locate(str(file))


def test_values_that_are_not_finite(tmp_path):
    model = gguf_files.llama()
    torch.nn.init.constant_(model.model.norm.weight, float("nan"))
    with pytest.raises(ModelError, match=r"not finite, in model\.norm\.weight"):
        locate(str(gguf_files.write(tmp_path / "a.gguf", model)))


def test_one_part_of_several(tmp_path):
    file = gguf_files.write(tmp_path / "a-00001-of-00003.gguf", gguf_files.llama(), extra={"split.count": 3})
    with pytest.raises(ModelError, match="is one part of several"):
        locate(str(file))
