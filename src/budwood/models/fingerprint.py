"""Which weights are these? The SHA-256 of the source weights, before any load-time quantisation.

A run stores it, so that an adapter is never put onto other weights by mistake. Hashing reads every byte, so each
file's digest is remembered in `fingerprints.json` of the cache by path, size and modification time. The file is only
a help: a damaged one is ignored and written anew, and if two processes write at once, one forgets what the other
learned.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from budwood.errors import StorageError
from budwood.storage import cache_dir, read_json, write_json


def fingerprint_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, from memory if path, size and modification time are known."""
    real = os.path.realpath(path)  # files of the hub's cache are links: the blob is what counts
    state = os.stat(real)
    entry = {"size": state.st_size, "mtime_ns": state.st_mtime_ns}
    known = _remembered().get(real)
    if isinstance(known, dict) and isinstance(known.get("sha256"), str) and known | entry == known:
        return known["sha256"]
    with open(real, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _remember(real, entry | {"sha256": digest})
    return digest


def fingerprint_files(paths: Sequence[Path]) -> str:
    """Return the SHA-256 over the names and digests of several weight files, whatever the order they come in."""
    total = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):
        total.update(f"{path.name}\0{fingerprint_file(path)}\n".encode())
    return total.hexdigest()


def _remembered() -> dict[str, Any]:
    try:
        known = read_json(cache_dir() / "fingerprints.json")
    except (OSError, ValueError, StorageError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(path: str, entry: dict[str, Any]) -> None:
    """Add one entry and drop those of files that are gone; a cache that cannot be written costs time only."""
    known = {name: value for name, value in _remembered().items() if os.path.exists(name)} | {path: entry}
    with contextlib.suppress(StorageError):
        write_json(cache_dir() / "fingerprints.json", known)
