"""Plain text of three kinds in files, and orders to learn from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from budwood.data.settings import DataSettings
from budwood.methods.idp.settings import BankSettings
from budwood.models import locate
from budwood.training.settings import TrainingSettings
from budwood.tuning.lesson import Order
from budwood.tuning.registry import find_tuner
from tests.methods.idp.test_clusters import KINDS

QUICK = {"learning_rate": 0.05, "max_steps": 4, "batch_size": 4, "save_every": 2, "evaluate_every": 2}


def write(folder: Path, *, sentences: int = 40, kinds: Sequence[str] = tuple(KINDS)) -> list[Path]:
    """Write one file a kind, of sentences of nine words; each is a window of some 50 bytes."""
    rng = np.random.default_rng(0)
    paths = []
    for kind in kinds:
        lines = [" ".join(rng.permutation(KINDS[kind].split())[:9]).capitalize() + "." for _ in range(sentences)]
        path = folder / f"{kind}.txt"
        path.write_text("\n\n".join(lines), encoding="utf-8")
        paths.append(path)
    return paths


def order(base: str, files: Sequence[Path], *, training: dict[str, Any] | None = None, **settings: Any) -> Order:
    tuner = find_tuner("prompt")
    return Order(
        source=locate(base),
        files=tuple(files),
        tuner=tuner,
        tuner_settings=tuner.settings(tokens=4),
        learner=BankSettings(**({"window": 64, "search": ()} | settings)),
        data=DataSettings(),
        training=TrainingSettings(**(QUICK | (training or {}))),
        seed=0,
    )
