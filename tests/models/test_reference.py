"""The grammar of model references."""

from __future__ import annotations

import subprocess
import sys

import pytest

from budwood.errors import ModelError
from budwood.models import ModelReference
from budwood.models.quantisation import SUFFIX_PACKAGES
from budwood.models.reference import QUANTISATIONS

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "kind", "location", "revision", "quantisation"),
    [
        ("smollm2", "packaged", "smollm2", None, None),
        (" smollm2+nf4 ", "packaged", "smollm2", None, "nf4"),
        ("org/name", "hub", "org/name", None, None),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "hub", "HuggingFaceTB/SmolLM2-135M-Instruct", None, None),
        ("org/name@main", "hub", "org/name", "main", None),
        ("org/name@refs/pr/3+int8", "hub", "org/name", "refs/pr/3", "int8"),
        (f"a.b-c/d_e.f@{COMMIT}", "hub", "a.b-c/d_e.f", COMMIT, None),
    ],
)
def test_names(text, kind, location, revision, quantisation):
    reference = ModelReference.parse(text)
    assert reference == ModelReference(kind, location, revision, quantisation)
    assert ModelReference.parse(str(reference)) == reference


def test_folder_and_file_become_absolute(tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    (tmp_path / "Base.GGUF").touch()
    monkeypatch.chdir(tmp_path)
    folder, file = ModelReference.parse("base+nf4"), ModelReference.parse("./Base.GGUF")
    assert (folder.kind, folder.location, folder.quantisation) == ("folder", str(tmp_path / "base"), "nf4")
    assert (file.kind, file.location) == ("gguf", str(tmp_path / "Base.GGUF"))
    monkeypatch.chdir("/")
    assert ModelReference.parse(str(folder)) == folder
    assert ModelReference.parse(str(file)) == file


@pytest.mark.parametrize("name", ["a+nf4", "a@b", "a@b+int8", "smollm2", "a+nonsense"])
def test_an_existing_folder_wins(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    reference = ModelReference.parse(name)
    assert reference == ModelReference("folder", str(tmp_path / name))
    assert ModelReference.parse(str(reference)) == reference


def test_an_existing_folder_wins_over_the_hub(tmp_path, monkeypatch):
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert ModelReference.parse("org/name").kind == "folder"


def test_home_is_expanded(tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ModelReference.parse("~/base").location == str(tmp_path / "base")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("smolm2", "did you mean 'smollm2'?"),
        ("smolm2", "org/name[@revision]"),
        ("smolm2+nf4", "no model called 'smolm2'"),
        ("smollm2+nf5", "did you mean 'nf4'?"),
        ("org/name+4bit", "no quantisation called '4bit'"),
        ("smollm2+", "no quantisation called ''"),
        ("./nowhere", "no model at ./nowhere"),
        ("./nowhere+nf9", "no model at ./nowhere+nf9"),
        ("/no/such/folder", "no model at"),
        ("nowhere.gguf", "no model at nowhere.gguf"),
        ("org/nowhere.gguf", "no model at org/nowhere.gguf"),
        ("a/b/c", "no model at a/b/c"),
        ("org/na me", "no model at org/na me"),
        ("", "no model called ''"),
        ("gpt2", "with its owner"),
    ],
)
def test_errors_say_the_way_out(tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as caught:
        ModelReference.parse(text)
    assert says in str(caught.value)


def test_a_file_that_is_no_model(tmp_path):
    file = tmp_path / "weights.txt"
    file.touch()
    with pytest.raises(ModelError, match=r"is a file, but not a model"):
        ModelReference.parse(str(file))


def test_every_suffix_has_a_backend():
    assert set(SUFFIX_PACKAGES) == set(QUANTISATIONS)


def test_torch_is_not_imported():
    code = "import sys; from budwood.models import ModelReference; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
