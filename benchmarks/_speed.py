"""How times are taken in this folder: works in turn, in one process, and the spread of what each round says.

A busy machine slows all works of a round alike (A B A B …), so ratios are taken round by round. Time is processor
time on a CPU, which another process's work does not add to, and wall-clock time in CUDA.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor


def clock(device: torch.device) -> float:
    """Return seconds: of the processor, or of the wall clock once the GPU is done."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def in_turn(works: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[Any]]:
    """Return what each work says in each round; a round before them, which warms up, is thrown away."""
    told: dict[str, list[Any]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            found = work()
            if repeat:
                told[name].append(found)
    return told


def timed(work: Callable[[], Any], device: torch.device) -> Callable[[], float]:
    """Return the work as one that says how long it took, in seconds."""

    def run() -> float:
        began = clock(device)
        work()
        return clock(device) - began

    return run


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Return the median and the quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": round(median, digits), "low": round(low, digits), "high": round(high, digits)}


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Return the spread in milliseconds."""
    return spread([1000 * one for one in seconds])


def ratios(taken: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """Return the spread of the quotients of the rounds."""
    return spread([one / other for one, other in zip(taken, reference, strict=True)])


def cache_slots(model: nn.Module, work: Callable[[], Any]) -> list[int]:
    """Do the work and return how many slots the cache has after each forward pass of the model."""
    slots: list[int] = []

    def look(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        slots.append(int((named.get("cache") or named["past_key_values"]).get_seq_length()))

    work()  # encodes the prompts
    hook = model.register_forward_hook(look, with_kwargs=True)
    try:
        work()
    finally:
        hook.remove()
    return slots


class Stamps(LogitsProcessor):
    """Notes the time whenever `generate` has the logits of a next token, and leaves them as they are.

    Attributes:
        times: in seconds: until the first token (all that is read before it), then of each further one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._last = device, clock(device)
        self.times: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        now = clock(self._device)
        self.times.append(now - self._last)
        self._last = now
        return scores
