"""Fingerprints: right, cached, and not led astray by a damaged cache."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from budwood.models import fingerprint, fingerprint_file, fingerprint_files
from budwood.storage import cache_dir


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def hashed(monkeypatch):
    """The files whose bytes were read."""
    names, digest = [], hashlib.file_digest

    def spy(file, kind):
        names.append(file.name)
        return digest(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", spy)
    return names


def test_it_is_the_sha256_of_the_file(file):
    assert fingerprint_file(file) == hashlib.sha256(b"weights").hexdigest()


def test_a_known_file_is_not_read_again(file, hashed):
    assert fingerprint_file(file) == fingerprint_file(file)
    assert len(hashed) == 1


def test_a_link_is_known_by_its_target(file, hashed, tmp_path):
    (tmp_path / "link").symlink_to(file)
    assert fingerprint_file(tmp_path / "link") == fingerprint_file(file)
    assert len(hashed) == 1


def test_a_changed_file_is_read_again(file):
    before = fingerprint_file(file)
    state = file.stat()
    file.write_bytes(b"weightz")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert fingerprint_file(file) != before


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"PATH": 3}', '{"PATH": {"size": 7}}', '{"PATH": {"sha256": 1}}', "\x00"]
)
def test_a_damaged_cache_is_rewritten(file, text):
    cache = cache_dir() / "fingerprints.json"
    cache.write_text(text.replace("PATH", os.path.realpath(file)))
    assert fingerprint_file(file) == hashlib.sha256(b"weights").hexdigest()
    assert json.loads(cache.read_text())[os.path.realpath(file)]["sha256"] == fingerprint_file(file)


def test_a_cache_that_cannot_be_written_is_no_failure(file, monkeypatch):
    (cache_dir() / "fingerprints.json").mkdir()
    monkeypatch.setattr(fingerprint, "write_json", _refuse)
    assert fingerprint_file(file) == hashlib.sha256(b"weights").hexdigest()


def _refuse(path, value):
    from budwood.errors import StorageError

    raise StorageError("read-only")


def test_files_that_are_gone_are_forgotten(file, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"")
    fingerprint_file(file)
    file.unlink()
    fingerprint_file(other)
    assert list(json.loads((cache_dir() / "fingerprints.json").read_text())) == [os.path.realpath(other)]


def test_names_count_and_order_does_not(tmp_path):
    for name, data in (("a", b"1"), ("b", b"2"), ("c", b"1")):
        (tmp_path / name).write_bytes(data)
    a, b, c = (tmp_path / name for name in "abc")
    assert fingerprint_files([a, b]) == fingerprint_files([b, a])
    assert fingerprint_files([a, b]) != fingerprint_files([c, b])
    assert fingerprint_files([a]) != fingerprint_file(a)
