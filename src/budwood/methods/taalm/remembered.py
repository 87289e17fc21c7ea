"""The model that a run starts from, and what was found out about it once: that is kept in the user's cache as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from budwood import storage
from budwood.models import Base

T = TypeVar("T")


@dataclass(frozen=True)
class Start:
    """What a run starts from: the bare base, or the base with the adapter of an earlier run.

    Attributes:
        model: in memory.
        name: what tells it from any other.
    """

    model: nn.Module
    name: tuple[str, ...]

    @classmethod
    def of(cls, base: Base, model: nn.Module | None = None, adapter: str = "") -> Start:
        """Return the start on a base.

        Args:
            model: the base with an adapter; none: the bare base.
            adapter: a digest of that adapter.
        """
        source = base.source
        name = (source.fingerprint, str(source.reference.quantisation), str(base.model.dtype))
        return cls(base.model if model is None else model, (*name, adapter) if adapter else name)

    def remembered(self, kind: str, said: list[str], find: Callable[[], T]) -> T:
        """Return what `find` finds out about the model, from the cache if it was found before.

        Args:
            kind: the folder in the cache.
            said: all that decides the result besides the model.
            find: returns what JSON can hold.

        Raises:
            StorageError: the disk failed.
        """
        digest = hashlib.sha256(json.dumps([*self.name, said]).encode()).hexdigest()
        path = storage.cache_dir() / kind / f"{digest[:32]}.json"
        try:
            found: T = storage.read_json(path)
        except (OSError, ValueError):  # missing, or damaged: it is found anew
            found = find()
            storage.write_json(path, found)
        return found
