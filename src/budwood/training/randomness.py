"""Seeds and the state of all generators: set, captured for a checkpoint, and put back."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import set_seed


def seed_all(seed: int, process: int = 0) -> None:
    """Seed Python, numpy and torch on all devices. Each process gets dropout masks of its own."""
    set_seed(seed + process)


def capture() -> dict[str, Any]:
    """Return the state of all generators in types that `torch.load(weights_only=True)` reads."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), float(gauss)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore(state: dict[str, Any]) -> None:
    """Put all generators back into a captured state."""
    keys, position, has_gauss, gauss = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Put all generators back when the block ends, so that what it draws does not change training."""
    state = capture()
    try:
        yield
    finally:
        restore(state)
