"""x + s φψx computed once where several layers of a block read the same x with the same map.

The query, key and value projections of an attention block read one tensor. If they share a map, their edited input is
the same tensor too. A scope belongs to the module that contains them; while that module's forward runs, the first
member that reads stores the edited input, the others take it, and the last one drops it.

What makes a stored tensor the right one: it was made by the same map from the same tensor *object* (held by a weak
reference) at the same version (in-place changes count it up), under the same grad mode, autocast dtype, training mode
and adapters. Each thread has its own store. At the end of the module's forward, also after an exception (gradient
checkpointing ends its second forward pass with one), nothing is left.

With dropout the members share one draw: they read the same edited input, as one fused layer would.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@dataclass
class _Slot:
    source: weakref.ref[Tensor]
    state: tuple[object, ...]
    edited: Tensor
    left: int  # members that have not read it yet


class InputScope:
    """The store of one block; made by `InputScope.around`, copied and pickled with the block, empty."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._thread = threading.local()

    @classmethod
    def around(cls, block: nn.Module) -> InputScope:
        """Return a scope that is open while `block` runs."""
        scope = cls()
        scope._handles = [
            block.register_forward_pre_hook(scope._open),
            block.register_forward_hook(scope._close, always_call=True),
        ]
        return scope

    def remove(self) -> None:
        """Take the hooks off the block again."""
        for handle in self._handles:
            handle.remove()

    def read(
        self, shared: nn.Module, x: Tensor, members: int, state: tuple[object, ...], edit: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return `edit(x)`, made anew or by another member.

        Args:
            shared: the map that `edit` uses.
            members: how many layers of the block read with this map.
            state: what else must be equal: whatever decides the result besides x and the map.
        """
        slots = None if torch.compiler.is_compiling() else getattr(self._thread, "slots", None)
        if slots is None or x.is_inference():  # inference tensors do not count their versions
            return edit(x)
        kind = x.device.type
        autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        state = (*state, x._version, torch.is_grad_enabled(), autocast)
        slot = slots.get(shared)
        if slot is None or slot.source() is not x or slot.state != state:
            slot = slots[shared] = _Slot(weakref.ref(x), state, edit(x), members)
        slot.left -= 1
        if not slot.left:
            del slots[shared]
        return slot.edited

    def _open(self, block: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._thread.slots = {}

    def _close(self, block: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self._thread.slots = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_handles": self._handles}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._handles = state["_handles"]
        self._thread = threading.local()
