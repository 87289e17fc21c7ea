"""Errors of torch and of the disk while training, translated into ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from budwood.errors import OutOfMemoryError, StorageError, TrainingError
from budwood.training.settings import TrainingSettings

# How torch's CPU allocator, CUDA's libraries and a host without memory report it, where they do not raise
# `torch.OutOfMemoryError` or `MemoryError`.
_MEMORY = ("can't allocate memory", "out of memory", "cannot allocate memory", "alloc_failed")


@contextlib.contextmanager
def translated(settings: TrainingSettings) -> Iterator[None]:
    """Turn a lack of memory into `OutOfMemoryError` with advice, and give a failing disk the exit code of training."""
    try:
        yield
    except StorageError as error:
        error.exit_code = TrainingError.exit_code
        raise
    except (MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        raise OutOfMemoryError(
            f"no memory left in training with batch_size {settings.batch_size}: {str(error)[:200]}",
            wanted="a batch that fits",
            action=memory_advice(settings),
        ) from error


def memory_advice(settings: TrainingSettings) -> str:
    """Return what the user can change to need less memory, with the values to set."""
    advice = []
    if settings.batch_size > 1:
        batch = (settings.batch_size + 1) // 2
        accumulate = -(-settings.batch_size * settings.accumulate // batch)
        advice.append(f"set training.batch_size to {batch} and training.accumulate to {accumulate} (same result)")
    if not settings.gradient_checkpointing:
        advice.append("set training.gradient_checkpointing to true (same result, slower)")
    if settings.dtype != "bfloat16":
        advice.append("set training.dtype to bfloat16")
    return "; ".join([*advice, "drop the longest rows with data.max_length"])


def _is_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(phrase in text for phrase in _MEMORY)
