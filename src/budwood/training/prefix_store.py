"""The file of the frozen-prefix cache: hidden states of rows, one row after another, mapped into memory.

    FOLDER/<key>/states.bin   (tokens, d) numbers in the precision of the model

The key is a hash of all that decides the states: the frozen weights, the configuration, the cut, the rows and torch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from budwood import storage
from budwood.errors import StorageError
from budwood.training.blocks import find_blocks

STATES = "states.bin"


def fingerprint(core: PreTrainedModel, cut: int, rows: Iterable[bytes]) -> str:
    """Return the key of the states that enter block `cut` for `rows` in the given order, in hexadecimal."""
    prefix, _ = find_blocks(core)
    said = f"{torch.__version__} {core.config._attn_implementation} {cut} {core.config.to_json_string()}"
    digest = hashlib.sha256(said.encode())
    for name, tensor in (*core.named_parameters(), *core.named_buffers()):
        above = name.startswith(f"{prefix}.") and int(name.removeprefix(f"{prefix}.").partition(".")[0]) >= cut
        if not above and not tensor.requires_grad:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(_bytes(tensor))
    for row in rows:
        digest.update(len(row).to_bytes(8, "little") + row)
    return digest.hexdigest()[:32]


def require_room(folder: Path, size: int, limit: int) -> None:
    """Make `folder` ready for a file of `size` bytes.

    Raises:
        StorageError: that is more than `limit`, or than half of what is free on the disk.
    """
    with storage.guarded(folder):
        folder.mkdir(parents=True, exist_ok=True)
    storage.sweep(folder)
    room = min(limit, shutil.disk_usage(folder).free // 2)
    if size > room:
        raise StorageError(
            f"the states of the frozen layers would take {size / 2**30:.3g} GiB",
            wanted=f"at most {room / 2**30:.3g} GiB",
            action="train on fewer tokens, or set training.cache_prefix to false",
        )


def write_states(path: Path, parts: Iterator[Tensor]) -> None:
    """Write the parts one after another to the folder `path`, which appears when it is whole.

    Raises:
        StorageError: the disk failed.
    """
    with storage.new_folder(path, replace=True) as staged, open(staged / STATES, "wb") as file:
        for part in parts:
            file.write(_bytes(part))
        file.flush()
        os.fsync(file.fileno())


def is_whole(path: Path, shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """Whether the folder holds states of this shape."""
    states = path / STATES
    return states.exists() and states.stat().st_size == shape[0] * shape[1] * dtype.itemsize


def read_states(path: Path, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return the states, (tokens, d), mapped into memory: a page is read when it is used."""
    return torch.from_file(str(path / STATES), shared=False, size=shape[0] * shape[1], dtype=dtype).view(shape)


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
