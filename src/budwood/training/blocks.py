"""The blocks of a language model, and the cut: the lowest block that training changes.

What lies below the cut is frozen, so the hidden state that enters block `cut` depends on a row's tokens alone. The
blocks are told by structure, the one `ModuleList` with as many entries as the configuration counts layers; no module
is known by its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from budwood.errors import NotSupportedError
from budwood.training.loss import language_model

HIDDEN = "hidden_states"  # the name of a block's first argument, where it is passed by name


def find_blocks(core: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """Return the name and the list of the blocks, which hand a hidden state of shape (batch, T, d) to one another.

    Raises:
        NotSupportedError: there is no such list, or more than one.
    """
    depth = getattr(core.config.get_text_config(), "num_hidden_layers", None)
    found: dict[str, nn.ModuleList] = {}
    for name, module in core.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and len(module) == depth and not inside:
            found[name] = module
    if len(found) != 1:
        raise NotSupportedError(
            f"{type(core).__name__} has {len(found)} lists of {depth} layers", wanted="one list of layers"
        )
    return next(iter(found.items()))


def find_cut(model: nn.Module) -> int:
    """Return the index of the lowest block with a trained parameter or an adapter; 0 < cut < the number of blocks.

    Raises:
        NotSupportedError: nothing below can be computed once and for all, with the reason.
    """
    core = language_model(model)
    if core.config.is_encoder_decoder:
        raise NotSupportedError(f"{type(core).__name__} is an encoder-decoder", wanted="a decoder")
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        raise NotSupportedError("a prompt is learned, which all layers read", wanted="an adapter in the top layers")
    prefix, blocks = find_blocks(core)
    changed = [name for name, module in core.named_modules() if _is_changed(module)]
    _require_above(core, prefix, changed)
    if not changed:
        raise NotSupportedError("no part of the model itself is trained", wanted="an adapter in the top layers")
    inside = [name.removeprefix(f"{prefix}.") for name in changed if name.startswith(f"{prefix}.")]
    cut = min((int(name.partition(".")[0]) for name in inside), default=len(blocks))
    if not 0 < cut < len(blocks):
        raise NotSupportedError(
            "the lowest layer is trained" if cut == 0 else "no layer is trained", wanted="an adapter in the top layers"
        )
    return cut


def _is_changed(module: nn.Module) -> bool:
    """Whether a module has a trained parameter of its own, or carries an adapter, which may be shared with others."""
    return isinstance(module, BaseTunerLayer) or any(p.requires_grad for p in module.parameters(recurse=False))


def _require_above(core: PreTrainedModel, prefix: str, changed: list[str]) -> None:
    """Refuse changes outside the blocks, except in the output head: where else they come in is not known."""
    head = core.get_output_embeddings()
    above = {id(module) for module in head.modules()} if head is not None else set()
    for name in changed:
        if not name.startswith(f"{prefix}.") and id(core.get_submodule(name)) not in above:
            raise NotSupportedError(f"{name or 'the model'} is trained, outside the layers", wanted="top layers only")


class _Reached(Exception):
    """Ends a forward pass at the cut."""


def run_below(core: PreTrainedModel, cut: int, inputs: Mapping[str, Tensor]) -> tuple[Tensor, int | None]:
    """Return the hidden state that enters block `cut`, (batch, T, d), and the number of other values in what the block
    below returned; None where that is a tensor alone.

    Raises:
        NotSupportedError: such another value enters block `cut`, too; or the model left out one of the two blocks.
    """
    _, blocks = find_blocks(core)
    entered: list[Any] = []
    returned: list[Any] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entered.extend((hidden_of(args, kwargs), [*args, *kwargs.values()]))
        raise _Reached

    hooks = [
        blocks[cut].register_forward_pre_hook(stop, with_kwargs=True),
        blocks[cut - 1].register_forward_hook(lambda module, args, output: returned.append(output)),
    ]
    try:
        with contextlib.suppress(_Reached), torch.no_grad():
            core(**inputs, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if not entered or not returned:
        raise NotSupportedError("the model leaves out layers", wanted="a model that runs all of its layers, in order")
    (hidden, given), (below,) = entered, returned
    if isinstance(below, Tensor):
        return hidden, None
    if any(value is not None and any(value is other for other in given) for value in below[1:]):
        raise NotSupportedError("the layers hand on more than hidden states", wanted="layers that hand on one tensor")
    return hidden, len(below) - 1


def hidden_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the hidden state among the arguments of a block."""
    return args[0] if args else kwargs[HIDDEN]


@contextlib.contextmanager
def mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a model into training or evaluation mode until the block ends, then each of its modules back."""
    before = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, was in before.items():
            module.training = was
