"""Parameters shared over layers under `fully_shard` (FSDP2), which gives each layer a unit of its own.

A parameter can lie in one unit only, and a shared one is used by many. So it has to lie in the root's, which is
gathered from before the first layer runs until the backward pass is over. A unit manages what can be reached from its
module without passing through another unit; therefore the shared maps are listed in the root, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.distributed.fsdp import fully_shard

from budwood.errors import UsageError
from budwood.tuning.shared_map import SharedMap

LIST = "shared_maps"  # the root's attribute; no tuner's prefix, so that saving an adapter does not see it


def fully_shard_shared(model: nn.Module, units: Iterable[nn.Module], **options: Any) -> None:
    """Apply `fully_shard` to each of `units` and then to `model`, with shared maps in the unit of `model`.

    Args:
        model: a `PeftModel`; no part of it is sharded yet. Its trainable tensors are DTensors afterwards, so the
            optimiser is made after this call.
        units: the layers that become units of their own.
        options: those of `torch.distributed.fsdp.fully_shard`, the same for every unit.

    Raises:
        UsageError: the model was given to this function before.
    """
    if hasattr(model, LIST):
        raise UsageError("the model is sharded already", action="call fully_shard_shared once, after all adapters")
    maps = [module for module in model.modules() if isinstance(module, SharedMap)]
    parameters = {parameter for shared in maps for parameter in shared.parameters()}
    model.add_module(LIST, nn.ModuleList(maps))
    for unit in units:
        fully_shard(unit, ignored_params=parameters, **options)
    fully_shard(model, **options)
