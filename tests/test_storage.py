"""Files are whole or absent; a failing disk has a clear error."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from budwood import storage
from budwood.errors import StorageError


def test_text_is_replaced_whole(tmp_path):
    path = tmp_path / "deep" / "a.json"
    storage.write_json(path, {"a": 1})
    storage.write_json(path, {"a": 2})
    assert storage.read_json(path) == {"a": 2}
    assert os.listdir(path.parent) == ["a.json"]
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_nan_is_no_json(tmp_path):
    with pytest.raises(ValueError):
        storage.write_json(tmp_path / "a.json", {"a": float("nan")})
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    storage.write_json(path, {"a": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="the disk is full"):
        storage.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError), storage.new_folder(tmp_path / "run") as staged:
        (staged / "part").write_text("x")
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    with storage.new_folder(tmp_path / "run") as staged:
        (staged / "part").write_text("x")
        assert not (tmp_path / "run").exists()
    assert (tmp_path / "run" / "part").read_text() == "x"


def test_a_folder_is_replaced_only_when_asked(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").touch()
    with pytest.raises(StorageError, match="exists already"), storage.new_folder(tmp_path / "run"):
        pass
    with storage.new_folder(tmp_path / "run", replace=True) as staged:
        (staged / "new").touch()
    assert os.listdir(tmp_path / "run") == ["new"] and os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize(
    "text", ["No space left on device (os error 28)", "Error while serializing: I/O error: No space left on device"]
)
def test_other_libraries_words_for_a_full_disk_are_understood(text: str, tmp_path):
    with pytest.raises(StorageError, match="the disk is full"), storage.guarded(tmp_path):
        raise RuntimeError(text)


def test_other_errors_pass(tmp_path):
    with pytest.raises(KeyError), storage.guarded(tmp_path):
        raise KeyError("x")


def test_sweep_removes_what_a_kill_left(tmp_path):
    (tmp_path / f"{storage.PARTIAL}abc").mkdir()
    (tmp_path / f"{storage.PARTIAL}def").touch()
    (tmp_path / "kept").touch()
    storage.sweep(tmp_path)
    assert os.listdir(tmp_path) == ["kept"]


def test_the_cache_is_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setenv("BUDWOOD_CACHE", str(tmp_path / "here"))
    assert storage.cache_dir() == tmp_path / "here" and (tmp_path / "here").is_dir()
    monkeypatch.delenv("BUDWOOD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert storage.cache_dir() == tmp_path / "budwood"


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_what_is_published_has_the_permissions_of_new_files(tmp_path, umask):
    """safetensors and `tempfile` make files for their owner only; that must not come through the rename."""
    before = os.umask(umask)
    try:
        with storage.new_folder(tmp_path / "run") as staged, storage.new_file(tmp_path / "a.gguf") as file:
            for path in (staged / "weights", file):
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    finally:
        os.umask(before)
    for path in (tmp_path / "run" / "weights", tmp_path / "a.gguf"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert sorted(os.listdir(tmp_path)) == ["a.gguf", "run"]


def test_a_file_appears_whole_or_not_at_all_and_replaces_only_when_asked(tmp_path):
    with pytest.raises(RuntimeError), storage.new_file(tmp_path / "a.gguf") as file:
        file.write_text("x")
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    with storage.new_file(tmp_path / "a.gguf") as file:
        assert file.name == "a.gguf"
        file.write_text("x")
    with pytest.raises(StorageError, match="exists already"), storage.new_file(tmp_path / "a.gguf"):
        pass
    with storage.new_file(tmp_path / "a.gguf", replace=True) as file:
        file.write_text("y")
    assert (tmp_path / "a.gguf").read_text() == "y" and os.listdir(tmp_path) == ["a.gguf"]


def test_a_place_that_takes_no_files_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    places = [tmp_path / "file"] + [Path("/proc")] * Path("/proc/self").exists()
    for place in places:
        with pytest.raises(StorageError, match="could not make the folder"):
            storage.make_folder(place / "x")
        with pytest.raises(StorageError), storage.new_folder(place / "x"):
            pass
        with pytest.raises(StorageError), storage.new_file(place / "x.gguf"):
            pass
        with pytest.raises(StorageError):
            storage.write_text(place / "x.txt", "")
