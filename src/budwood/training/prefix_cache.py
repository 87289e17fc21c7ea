"""The frozen-prefix cache: the hidden states that enter the lowest trained block, computed once for each row.

With L blocks of which the top K are trained, a training step needs the lower L − K only for its forward pass, and
that gives the same states each time the row is seen. They are kept in one memory-mapped file, d numbers a token, and
found again by the row's tokens. So whatever asks the model for a row that was stored (training, evaluation, a probe)
runs the top blocks only, and whatever asks for something else runs the whole model: generation, packed rows, unknown
ones.

Nothing but the frozen weights and the row decides a state: there is no adapter below the cut, and dropout is off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from budwood.errors import NotSupportedError
from budwood.training.blocks import HIDDEN, find_blocks, find_cut, hidden_of, mode, run_below
from budwood.training.forwards import replaced
from budwood.training.loss import language_model, target_logits
from budwood.training.prefix_store import fingerprint, is_whole, read_states, require_room, write_states

if TYPE_CHECKING:
    from budwood.data.render import Encoded
    from budwood.training.feed import Collate

LIMIT_BYTES = 8 * 2**30
_READ = {"input_ids", "attention_mask", "use_cache", "return_dict"}  # arguments of a forward that the states cover


class PrefixCache:
    """Stored hidden states of rows, in front of one block. Made by `build`.

    Attributes:
        cut: the index of that block.
        path: the folder of the states.
        batches: forward passes that were served from the cache.
    """

    def __init__(self, path: Path, states: Tensor, places: Mapping[bytes, slice], cut: int, rest: int | None) -> None:
        self.path, self.cut, self.batches = path, cut, 0
        self._states, self._places, self._rest = states, places, rest
        self._current: list[slice] | None = None

    @classmethod
    def build(
        cls,
        model: nn.Module,
        rows: Sequence[Encoded],
        collate: Collate,
        folder: Path,
        *,
        batch_size: int,
        limit_bytes: int = LIMIT_BYTES,
    ) -> PrefixCache:
        """Return the cache of `rows` in `folder`, computed in evaluation mode unless it is there already.

        Args:
            model: a causal language model whose trained parameters lie in its top blocks; on its device.
            rows: encoded rows.
            collate: makes a batch of rows, padded on the right.
            folder: where caches lie.
            batch_size: rows that are computed together.
            limit_bytes: how large the file may become; never more than half of what is free on the disk.

        Raises:
            NotSupportedError: the model or its batches are not of that kind.
            StorageError: the states would be too large, or the disk failed.
        """
        core, cut = language_model(model), find_cut(model)
        distinct = {_key(row.input_ids): row for row in sorted(rows, key=lambda row: -len(row.input_ids))}
        with mode(model, training=False):
            sample, rest = run_below(core, cut, _inputs(core, collate([min(rows, key=_length)])))
            shape = (sum(map(_length, distinct.values())), sample.shape[-1])
            path = folder / fingerprint(core, cut, distinct)
            if not is_whole(path, shape, sample.dtype):
                require_room(folder, shape[0] * shape[1] * sample.dtype.itemsize, limit_bytes)
                batches = _batches(list(distinct.values()), batch_size)
                write_states(path, (_states(core, cut, collate, batch) for batch in batches))
        return cls(path, read_states(path, shape, sample.dtype), _places(distinct), cut, rest)

    @contextlib.contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """Let `model` read the states of stored rows instead of computing them, until the block ends."""
        core = language_model(model)
        _, blocks = find_blocks(core)
        with contextlib.ExitStack() as stack:
            for block in blocks[: self.cut]:
                stack.enter_context(replaced(block, self._passing(block.forward)))
            for hook in (
                core.register_forward_pre_hook(self._enter, with_kwargs=True),
                core.register_forward_hook(self._leave, always_call=True),
                blocks[self.cut].register_forward_pre_hook(self._feed, with_kwargs=True),
            ):
                stack.callback(hook.remove)
            yield

    def deviation(self, model: nn.Module, batch: Mapping[str, Tensor]) -> float:
        """Return the largest difference that the cache makes to the target logits of a batch, over the largest logit.

        Raises:
            NotSupportedError: the batch is not one that the cache serves.
        """
        with torch.no_grad(), mode(model, training=False):
            whole, _ = target_logits(model, batch)
            served = self.batches
            with self.attached(model):
                cached, _ = target_logits(model, batch)
        if self.batches == served:
            raise NotSupportedError(
                f"batches with {', '.join(sorted(batch))} are not served by the cache",
                wanted="input_ids and attention_mask, padded on the right, not packed",
            )
        return float((whole - cached).abs().max() / whole.abs().max()) if whole.numel() else 0.0

    # --- inside a forward pass

    def _enter(self, core: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {name for name, value in kwargs.items() if value is not None and value is not False}
        plain = not args and given <= _READ and kwargs.get("use_cache") is False and kwargs.keys() >= {"input_ids"}
        self._current = self._find(kwargs["input_ids"], kwargs.get("attention_mask")) if plain else None
        self.batches += self._current is not None

    def _leave(self, core: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._current = None

    def _find(self, input_ids: Tensor, attention_mask: Tensor | None) -> list[slice] | None:
        """Return the places of all rows of a batch; None unless all are stored, and padded on the right."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if mask.shape != input_ids.shape:
            return None
        ids, mask = input_ids.cpu().numpy(), mask.cpu().numpy()
        lengths = mask.sum(axis=1)
        if not ((np.arange(mask.shape[1]) < lengths[:, None]) == (mask == 1)).all():
            return None
        found = [self._places.get(_key(row[:length])) for row, length in zip(ids, lengths)]
        return [place for place in found if place is not None] if None not in found else None

    def _passing(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward of a lower block: its own, or none at all where the states come from the cache."""

        def pass_through(*args: Any, **kwargs: Any) -> Any:
            if self._current is None:
                return forward(*args, **kwargs)
            hidden = hidden_of(args, kwargs)
            return hidden if self._rest is None else (hidden, *[None] * self._rest)

        return pass_through

    def _feed(
        self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._current is None:
            return None
        hidden = hidden_of(args, kwargs)
        filled = torch.zeros(hidden.shape, dtype=hidden.dtype)
        for row, place in enumerate(self._current):
            filled[row, : place.stop - place.start] = self._states[place]
        stored = filled.to(hidden.device)
        return ((stored, *args[1:]), kwargs) if args else ((), kwargs | {HIDDEN: stored})


def _length(row: Encoded) -> int:
    return len(row.input_ids)


def _key(ids: Sequence[int] | np.ndarray) -> bytes:
    return np.asarray(ids, dtype=np.int32).tobytes()


def _places(rows: Mapping[bytes, Encoded]) -> dict[bytes, slice]:
    ends = np.cumsum([_length(row) for row in rows.values()]).tolist()
    return {key: slice(end - _length(row), end) for (key, row), end in zip(rows.items(), ends)}


def _batches(rows: Sequence[Encoded], size: int) -> Iterator[list[Encoded]]:
    return (list(rows[start : start + size]) for start in range(0, len(rows), size))


def _inputs(core: PreTrainedModel, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: batch[name].to(core.device) for name in ("input_ids", "attention_mask")}


def _states(core: PreTrainedModel, cut: int, collate: Collate, rows: list[Encoded]) -> Tensor:
    """Return the states of the tokens of a batch of rows, one row after another, (tokens, d), on the CPU."""
    inputs = _inputs(core, collate(rows))
    hidden, _ = run_below(core, cut, inputs)
    return torch.cat([states[: _length(row)] for states, row in zip(hidden, rows, strict=True)]).cpu()
