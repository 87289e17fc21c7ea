"""A batch whose rows use different adapters: how each layer gets to know the adapter of each row."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from torch import nn

BASE = "__base__"  # PEFT's name for rows that use no adapter


@contextlib.contextmanager
def adapters_by_row(
    layers: Sequence[nn.Module], names: Sequence[str], known: Collection[str], beams: int | None
) -> Iterator[None]:
    """Pass `names`, one adapter a row, to every call of `layers`.

    Args:
        known: the adapters that are loaded.
        beams: rows of the batch for each name, in a beam search.

    Raises:
        ValueError: (PEFT's error for it) an adapter that is not loaded.
    """
    unknown = sorted(set(names) - {BASE} - set(known))
    if unknown:
        raise ValueError(f"adapter_names holds {', '.join(unknown)}; loaded are: {', '.join(known)}")
    hook = partial(_pass_names, names=[name for name in names for _ in range(beams or 1)])
    handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _pass_names(module: nn.Module, args: tuple, kwargs: dict, names: list[str]) -> tuple[tuple, dict]:
    return args, {**kwargs, "adapter_names": names}
