"""Tensors that were computed once for rows of text, kept in files by the content they depend on.

Rows are computed and written a group at a time, so what was interrupted goes on behind the last whole group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from budwood import storage

GROUP = 64  # rows a file


@dataclass(frozen=True)
class RowCache:
    """A folder of files, one a group of rows.

    Attributes:
        folder: made when it is first written.
        name: what decides the tensors besides the rows, such as a digest of the model that computes them.
    """

    folder: Path
    name: str

    def rows(self, contents: Sequence[Any], compute: Callable[[list[int]], list[Tensor]]) -> list[Tensor]:
        """Return a tensor for each row.

        Args:
            contents: what else decides the tensor of each row, as JSON can write it.
            compute: from the indices of some rows to their tensors.

        Raises:
            StorageError: the disk failed.
        """
        keys = [hashlib.sha256(json.dumps([self.name, one]).encode()).hexdigest() for one in contents]
        found: list[Tensor] = []
        for start in range(0, len(keys), GROUP):
            group = keys[start : start + GROUP]
            path = self.folder / f"{hashlib.sha256(''.join(group).encode()).hexdigest()[:32]}.safetensors"
            kept = _read(path)
            if not kept.keys() >= set(group):
                tensors = compute(list(range(start, start + len(group))))
                kept = {key: tensor.contiguous().clone() for key, tensor in zip(group, tensors, strict=True)}
                with storage.new_file(path, replace=True) as staged:
                    save_file(kept, staged)
            found += [kept[key] for key in group]
        return found


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError):  # missing, or damaged: it is computed anew
        return {}
