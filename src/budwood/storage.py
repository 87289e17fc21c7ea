"""Files that are either whole or absent: written under a temporary name, flushed, then renamed.

Also the one place that knows where the user's cache is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from budwood.errors import StorageError

PARTIAL = ".partial-"  # the start of every temporary name; `sweep` removes what a killed process left


def cache_dir() -> Path:
    """Return the user's cache folder, made if missing: `$BUDWOOD_CACHE`, else `$XDG_CACHE_HOME/budwood`, else
    `~/.cache/budwood`."""
    chosen = os.environ.get("BUDWOOD_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "budwood"
    make_folder(base)
    return base


_DISK = {
    errno.ENOSPC: ("the disk is full", "free some space, or choose another place, and run the same command again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or choose another place"),
    errno.EROFS: ("the disk is read-only", "choose a place that can be written"),
    errno.EACCES: ("no permission to write there", "choose a place that you may write to"),
    errno.EPERM: ("no permission to write there", "choose a place that you may write to"),
    errno.EFBIG: ("the file would be larger than this system allows", "choose another disk, or raise the limit"),
    errno.EIO: ("the disk reports an input/output error", "check the disk"),
}


@contextlib.contextmanager
def guarded(path: str | Path) -> Iterator[None]:
    """Turn a failing disk into a `StorageError` that names `path`; let every other exception pass.

    safetensors and tokenizers report a failing disk with types of their own and the text of the OS error, so the
    text is looked at too.
    """
    try:
        yield
    except Exception as error:
        code = getattr(error, "errno", None) or _code_in(str(error))
        if code not in _DISK:
            raise
        what, action = _DISK[code]
        raise StorageError(f"could not write {path}: {what}", action=action) from error


def _code_in(text: str) -> int | None:
    return next((code for code in _DISK if f"os error {code})" in text or os.strerror(code) in text), None)


def make_folder(path: str | Path) -> None:
    """Make a folder, and those above it, where they are missing.

    Raises:
        StorageError: it cannot be made: no permission, a file in the way, a file system like /proc.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what, action = _DISK.get(error.errno or 0, (error.strerror or str(error), "choose another place"))
        raise StorageError(f"could not make the folder {path}: {what}", action=action) from error


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old file or the new one, never a part."""
    path = Path(path)
    make_folder(path.parent)
    with guarded(path):
        temporary = _temporary(path.parent)
        try:
            with _opened_anew(temporary) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _opened_anew(path: Path) -> TextIO:
    try:
        return open(path, "x", encoding="utf-8")
    except FileNotFoundError as error:  # the folder is there, so its file system takes no new files
        raise StorageError(f"no file can be made in {path.parent}", action="choose another place") from error


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all. NaN is refused: no other tool reads it."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Return the JSON value in `path`; the caller translates `OSError` and `ValueError`."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


@contextlib.contextmanager
def new_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it to `path` when the block ends well, else remove it.

    Its files get the permissions that the user's umask allows, whatever the libraries gave them that wrote them.

    Args:
        path: the folder to make.
        replace: whether an existing folder there may be replaced; otherwise it is a `StorageError`.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise StorageError(f"{path} exists already", action="choose another place, or remove it first")
    temporary = _temporary(path.parent)
    make_folder(temporary)
    with guarded(path):
        try:
            yield temporary
            _open_up(temporary)
            _swap(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextlib.contextmanager
def new_file(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """As `new_folder`, for one file that a library writes: yields another path that ends in the same name."""
    path = Path(path)
    if path.exists() and not replace:
        raise StorageError(f"{path} exists already", action="choose another name, or remove it first")
    place = _temporary(path.parent)
    make_folder(place)
    with guarded(path):
        try:
            yield place / path.name
            _open_up(place)
            os.replace(place / path.name, path)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _open_up(folder: Path) -> None:
    """Give the files in `folder` the permissions of new files; safetensors writes its own for the owner only.

    The mode of the folder, which was just made, tells the umask without changing it.
    """
    mode = folder.stat().st_mode & 0o666
    for entry in folder.rglob("*"):
        if entry.is_file() and not entry.is_symlink():
            entry.chmod(mode)


def _swap(temporary: Path, path: Path) -> None:
    """Rename `temporary` to `path`; an old folder there is set aside first and removed last."""
    if not path.exists():
        os.replace(temporary, path)
        return
    aside = _temporary(path.parent)
    os.replace(path, aside)
    os.replace(temporary, path)
    shutil.rmtree(aside, ignore_errors=True)


def sweep(folder: str | Path) -> None:
    """Remove what killed processes left under temporary names directly in `folder`."""
    for entry in Path(folder).glob(f"{PARTIAL}*"):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _temporary(folder: Path) -> Path:
    """Return a new name in `folder`; `open` and `mkdir` give it the permissions that the user's umask allows."""
    return folder / f"{PARTIAL}{secrets.token_hex(8)}"
