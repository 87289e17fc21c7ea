"""What every pass over rows without gradients shares: evaluation mode, batches, progress, memory errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import torch
from torch import nn

from budwood.errors import OutOfMemoryError, UsageError
from budwood.tuning.soft_prompts import virtual_tokens

Progress: TypeAlias = Callable[[str, int, int], None]  # called with what is done, how many rows, out of how many
BatchSize: TypeAlias = int | Literal["auto"]


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off and gradients off; put every module back in the mode it had.

    `no_grad` and not `inference_mode`, which was no faster with a model of 135 M parameters: what a module caches
    meanwhile can still be used in training, and tensors keep their version counters. A device without memory left
    becomes an `OutOfMemoryError`.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemoryError(
            "the device had no memory left while evaluating", action="choose a smaller batch size"
        ) from error
    finally:
        for module in training:
            module.training = True


def device_of(model: nn.Module) -> torch.device:
    """Return the device on which the model takes its input."""
    return next(model.parameters()).device


def context_length(model: nn.Module) -> int | None:
    """Return how many tokens of text the model was made for, or None where its positions have no end.

    A soft prompt takes its positions from them.
    """
    try:
        positions = int(model.config.get_text_config().max_position_embeddings)
    except AttributeError:  # ALiBi and recurrent models declare none
        return None
    return positions - virtual_tokens(model)


def make_batches(lengths: Sequence[int], batch_size: BatchSize, budget: int) -> list[list[int]]:
    """Return the indices of the rows in batches of similar length, longest first, so lack of memory shows at once.

    Args:
        lengths: tokens of each row.
        batch_size: rows a batch; "auto" takes as many as fit `budget` when padded, and at least one.
        budget: padded tokens a batch.
    """
    if batch_size != "auto" and batch_size < 1:
        raise UsageError(f"a batch size of {batch_size}", wanted="1 or more, or 'auto'")
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    while order:
        size = max(1, budget // max(1, lengths[order[0]])) if batch_size == "auto" else batch_size
        batches.append(order[:size])
        order = order[size:]
    return batches
