"""What a finished cell of the instruction tables is: its key, and its scores in a compact form.

A line holds everything that decides its figures and, for each row, whether it was right and its nats: tables and
intervals are computed from the file alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._table import append, digest, read
from .learning import Score

__all__ = ["Cell", "Table", "append", "hits", "pack_scores", "read"]  # other tables read and append by way of here

VERSION = 1  # raise it when a change here makes old cells no longer comparable


@dataclass(frozen=True)
class Table:
    """What the cells of one table have in common; cells of different tables are never compared.

    Attributes:
        subset, tasks: the tasks trained on.
        data: digest of the corpus.
        base, fingerprint: the base model and its weights.
        dtype, device: precision of the base, kind of device.
        schedule: the settings of training, and of each stage its steps.
    """

    subset: str
    tasks: tuple[str, ...]
    data: str
    base: str
    fingerprint: str
    dtype: str
    device: str
    schedule: Mapping[str, Any]

    @property
    def name(self) -> str:
        """A short digest of all of it."""
        return digest({"version": VERSION, **self.to_dict()})[:10]

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "tasks": list(self.tasks), "schedule": dict(self.schedule)}


@dataclass(frozen=True)
class Cell:
    """One run of one arm.

    Attributes:
        table: name of the table.
        arm: name of the arm.
        settings: of its tuner, all of them.
        stage: "search" or "final".
        learning_rate: 0.0 for the base.
        seed: of the order of rows and of the adapter's start.
    """

    table: str
    arm: str
    settings: Mapping[str, Any] = field(hash=False)
    stage: str
    learning_rate: float
    seed: int

    @property
    def key(self) -> str:
        """A digest: a cell whose key is in the file is not computed again."""
        return digest({**vars(self), "settings": dict(self.settings)})[:16]


def pack_scores(scores: Sequence[Score]) -> dict[str, Any]:
    """Return the compact form of scores: means, bit strings in hexadecimal, and nats a row to three decimals."""
    exact, answered = ([getattr(score, name) for score in scores] for name in ("exact", "answered"))
    tokens = sum(score.tokens for score in scores)
    return {
        "rows": len(scores),
        "exact": round(float(np.mean(exact)), 6),
        "answered": round(float(np.mean(answered)), 6),
        "nll_per_token": round(sum(score.nll for score in scores) / tokens, 6),
        "hits": np.packbits(exact).tobytes().hex(),
        "answered_hits": np.packbits(answered).tobytes().hex(),
        "nll": [round(score.nll, 3) for score in scores],
    }


def hits(packed: Mapping[str, Any], name: str = "hits") -> np.ndarray:
    """Return the bits of `pack_scores`, a float a row."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(packed[name]), dtype=np.uint8), count=packed["rows"])
    return bits.astype(np.float64)
