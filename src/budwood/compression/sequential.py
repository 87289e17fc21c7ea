"""A model compressed block by block, each calibrated on what the compressed blocks below it hand on.

Memory beside the model: the hidden states of the calibration text, once, on the CPU, and H of one block's layers.
Windows are of one length and not padded, so what a block is given beside the hidden state (masks, positions) is the
same for all of them. That, and that blocks hand on nothing else, is checked on a window before anything is changed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from budwood.compression.grams import Watch
from budwood.compression.layers import LayerReport, compress_layer
from budwood.compression.settings import Compression
from budwood.errors import NotSupportedError
from budwood.models.sites import Site, find_sites
from budwood.training.blocks import HIDDEN, find_blocks, hidden_of

Progress = Callable[[str, int, int], None]  # what is done, how many, of how many


def compress_plain(
    model: PreTrainedModel, settings: Compression, progress: Progress | None = None
) -> list[LayerReport]:
    """Compress every site of a model in place, without text.

    Args:
        model: frozen, on plain layers.
        settings: settled, of a method that needs no text.
        progress: called with ("layers", layers done, layers).

    Raises:
        NotSupportedError: a layer's weight cannot be read.
    """
    sites, reports = find_sites(model), []
    for site in sites:
        reports.append(compress_layer(model.get_submodule(site.name), site, None, settings))
        if progress is not None:
            progress("layers", len(reports), len(sites))
    return reports


@torch.no_grad()
def compress_calibrated(
    model: PreTrainedModel, settings: Compression, windows: Int[Tensor, "n t"], progress: Progress | None = None
) -> list[LayerReport]:
    """Compress every site of a decoder in place, calibrated on text.

    Args:
        model: frozen, in evaluation mode, on plain layers.
        settings: settled.
        windows: token ids.
        progress: called with ("blocks", blocks done, blocks).

    Raises:
        NotSupportedError: the model is no decoder whose blocks hand on one tensor, a layer's weight cannot be read,
            or what layers read is not finite.
    """
    if model.config.is_encoder_decoder:
        raise NotSupportedError(f"{type(model).__name__} is an encoder-decoder", wanted="a decoder, or no calibration")
    prefix, blocks = find_blocks(model)
    calls = _calls(model, blocks, windows)
    hidden = [_entering(model, blocks[0], window) for window in windows]
    by_block = _by_block(find_sites(model), prefix, len(blocks))
    reports: list[LayerReport] = []
    for k, (block, call) in enumerate(zip(blocks, calls)):
        reports += _compress_block(model, by_block[k], functools.partial(call, block), hidden, settings)
        hidden = [call(block, states) for states in hidden]
        if progress is not None:
            progress("blocks", k + 1, len(blocks))
    return reports


def _compress_block(
    model: PreTrainedModel,
    sites: Sequence[Site],
    run: Callable[[Tensor], Tensor],
    hidden: Sequence[Tensor],
    settings: Compression,
) -> list[LayerReport]:
    layers = {site.name: model.get_submodule(site.name) for site in sites}
    with Watch().on(layers, {site.name: site.in_features for site in sites}) as watch:
        for states in hidden:
            watch.next_pass()
            run(states)
    return [compress_layer(layers[site.name], site, watch.of(site.name), settings) for site in sites]


def _by_block(sites: Sequence[Site], prefix: str, count: int) -> list[list[Site]]:
    """Return the sites of each block; one outside the blocks has no place in the order.

    Raises:
        NotSupportedError: there is such a site.
    """
    found: list[list[Site]] = [[] for _ in range(count)]
    for site in sites:
        if not site.name.startswith(f"{prefix}."):
            raise NotSupportedError(f"{site.name} lies outside the layers {prefix}", action="take --method rtn")
        found[int(site.name.removeprefix(f"{prefix}.").partition(".")[0])].append(site)
    return found


@dataclass(frozen=True)
class _Call:
    """What a block is called with beside the hidden state."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Call:
        return cls(args[1:], {name: value for name, value in kwargs.items() if name != HIDDEN})

    def __call__(self, block: nn.Module, hidden: Float[Tensor, "1 t d"]) -> Float[Tensor, "1 t d"]:
        """Return what the block makes of a hidden state; both lie on the CPU."""
        device = next(block.parameters()).device
        output = block(hidden.to(device), *self.args, **self.kwargs)
        return (output if isinstance(output, Tensor) else output[0]).cpu()


def _calls(model: PreTrainedModel, blocks: nn.ModuleList, windows: Int[Tensor, "n t"]) -> list[_Call]:
    """Return the call of each block.

    Raises:
        NotSupportedError: another window, run with these calls, does not become what the model makes of it; or that is
            not finite.
    """
    _, states = _observed(model, blocks, windows[-1])
    if not torch.isfinite(states[-1]).all():
        raise NotSupportedError(
            f"the hidden states of {type(model).__name__} are not finite", action="calibrate with --dtype float32"
        )
    calls, _ = _observed(model, blocks, windows[0])
    hidden = states[0]
    for block, call in zip(blocks[:-1], calls):
        hidden = call(block, hidden)
    close = torch.allclose(hidden, states[-1], rtol=0, atol=1e-2 * states[-1].abs().max().item())
    if len(calls) != len(blocks) or not close:
        raise NotSupportedError(
            f"the layers of {type(model).__name__} hand on more than hidden states, or not all of them run",
            wanted="layers that hand on one tensor, in order",
            action="take --method rtn or magnitude without --calibration",
        )
    return calls


def _observed(
    model: PreTrainedModel, blocks: nn.ModuleList, window: Int[Tensor, " t"]
) -> tuple[list[_Call], list[Float[Tensor, "1 t d"]]]:
    """Run the model on a window; return the call of each block and the hidden state that entered it."""
    calls: list[_Call] = []
    states: list[Tensor] = []

    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(_Call.of(args, kwargs))
        states.append(hidden_of(args, kwargs).cpu())

    hooks = [block.register_forward_pre_hook(see, with_kwargs=True) for block in blocks]
    try:
        _run(model, window)
    finally:
        for hook in hooks:
            hook.remove()
    return calls, states


class _Entered(Exception):
    """Ends a forward pass where the first block begins."""


def _entering(model: PreTrainedModel, first: nn.Module, window: Int[Tensor, " t"]) -> Float[Tensor, "1 t d"]:
    """Return the hidden state that enters the first block."""
    found: list[Tensor] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(hidden_of(args, kwargs).cpu())
        raise _Entered

    hook = first.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with contextlib.suppress(_Entered):
            _run(model, window)
    finally:
        hook.remove()
    return found[0]


def _run(model: PreTrainedModel, window: Int[Tensor, " t"]) -> None:
    """Run the model without its head, whose logits nobody needs here."""
    model.base_model(input_ids=window.unsqueeze(0).to(model.device), use_cache=False)
