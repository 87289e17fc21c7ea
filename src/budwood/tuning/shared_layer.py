"""A PEFT tuner layer whose low-rank maps are shared with other layers.

A method subclasses `SharedLayer` and says which places it uses; several adapters, mixed batches and the forward pass
are written here once, weights and merging in `adapted_linear`, the maps in `shared_map`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from peft.utils.quantization_utils import QuantizationBackend
from torch import Tensor, nn

from budwood.tuning.adapted_linear import AdaptedLinear
from budwood.tuning.edits import Edit, LowRankMap, Place, lora_factors
from budwood.tuning.factors import LoraFactors
from budwood.tuning.fused import add_low_rank
from budwood.tuning.input_sharing import InputScope
from budwood.tuning.shared_map import AdapterSpec, SharedMap


class SharedLayer(AdaptedLinear):
    """A linear layer of which each adapter edits the input, the output, or adds beside it."""

    attribute_of: ClassVar[dict[Place, str]]  # where the ModuleDict of each place is, e.g. {"input": "gift_in"}
    other_param_names: tuple[str, ...] = (
        "scale", "groups", "edits_bias", "shared_dropout", "readers", "_bent", "_kept_factors",
    )  # fmt: skip

    def __init__(
        self, base_layer: nn.Module, in_features: int, out_features: int, backend: QuantizationBackend | None
    ) -> None:
        super().__init__(base_layer, in_features, out_features, backend)
        self.scale: dict[str, float] = {}
        self.groups: dict[str, dict[Place, tuple[str, ...]]] = {}
        self.shared_dropout = nn.ModuleDict()
        for attribute in self.attribute_of.values():
            setattr(self, attribute, nn.ModuleDict())
        self.input_scope: InputScope | None = None
        self.readers: dict[str, int] = {}  # layers of the scope that read with this layer's input map
        self._bent: dict[str, bool] = {}
        self._kept_factors: dict[str, tuple[list[tuple[Any, ...]], LoraFactors]] = {}

    # --- adapters -----------------------------------------------------------------------------------------------

    def add(self, adapter: str, spec: AdapterSpec, inference_mode: bool) -> None:
        """Give this layer the maps of one adapter."""
        self.scale[adapter] = spec.scale
        self.groups[adapter] = dict(spec.groups)
        self.edits_bias[adapter] = spec.edits_bias and self._has_bias()
        self._bent[adapter] = any(shared.bend is not None for shared in spec.maps.values())
        self.shared_dropout[adapter] = nn.Dropout(spec.dropout) if spec.dropout else nn.Identity()
        for place, shared in spec.maps.items():
            getattr(self, self.attribute_of[place])[adapter] = shared
        self.set_adapter(self.active_adapters, inference_mode=inference_mode)

    def map_at(self, place: Place, adapter: str) -> SharedMap | None:
        """Return the adapter's map at `place`; None where it has none."""
        attribute = self.attribute_of.get(place)
        maps = self._modules[attribute]._modules if attribute else {}
        return maps.get(adapter)

    def parts_at(self, place: Place, adapter: str) -> Iterator[tuple[str, str, SharedMap]]:
        """Yield for each part of the adapter's map at `place`: its group, the path to it in this layer, the part."""
        shared = self.map_at(place, adapter)
        if shared is not None:
            path = f"{self.attribute_of[place]}.{adapter}"
            for group, (inside, part) in zip(self.groups[adapter][place], shared.parts()):
                yield group, f"{path}.{inside}", part

    def edit(self, adapter: str) -> Edit:
        """Return the adapter's maps with their scale; gradients flow to the parameters."""
        maps = {place: self.map_at(place, adapter) for place in self.attribute_of}
        return {
            place: LowRankMap(shared.up, shared.down, self.scale[adapter], shared.bend)
            for place, shared in maps.items()
            if shared is not None
        }

    def reads_apart(self, adapter: str) -> SharedMap | None:
        """Return the map that edits the input before the layer runs; None where the adapter has none such."""
        return None if self._bent[adapter] else self.map_at("input", adapter)

    def _move_adapter_to_device_of_base_layer(self, adapter_name: str, device: torch.device | None = None) -> None:
        # PEFT's version also casts to the base's dtype; a map that other layers use keeps its own.
        target = device if device is not None else self._get_base_layer_device_and_dtype(self.get_base_layer())[0]
        for place in self.attribute_of:
            shared = self.map_at(place, adapter_name)
            if shared is not None and target is not None and not any(p.is_meta for p in shared.parameters()):
                shared.to(target)

    # --- forward ------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, *args: Any, adapter_names: list[str] | None = None, **kwargs: Any) -> Tensor:
        """Map x (…, d_in) to (…, d_out). `adapter_names` gives each row of the batch its own adapter."""
        if self._disable_adapters:
            if self.merged:
                self.unmerge()
            return self.base_layer(x, *args, **kwargs)
        if adapter_names is not None:
            return self._mixed_batch(x, adapter_names, args, kwargs)
        if self.merged_adapters:
            return self.base_layer(x, *args, **kwargs)
        active = [name for name in self.active_adapters if name in self.scale]
        if len(active) == 1 and self.readers.get(active[0]):
            y = self.base_layer(self._read_together(x, active[0]), *args, **kwargs)
            return self._beside(x, active, self._written(y, active[0]) if self._writes(active[0]) else y)
        return self._edited(x, active, args, kwargs)

    def _edited(self, x: Tensor, adapters: Sequence[str], args: tuple, kwargs: dict) -> Tensor:
        """Return the output under the sum of the adapters' ΔW.

        Adapters without an output map share one base call. An output map acts on its own adapter's W x̂, so several
        adapters of which one edits the output need a base call each.
        """
        after = [name for name in adapters if self._writes(name)]
        if len(adapters) == 1 and after:
            y = self._written(self.base_layer(self._read(x, adapters), *args, **kwargs), adapters[0])
            return self._beside(x, adapters, y)
        before = [name for name in adapters if name not in after]
        y = self._beside(x, adapters, self.base_layer(self._read(x, before), *args, **kwargs))
        if after:
            plain = self.base_layer(x, *args, **kwargs)
            for name in after:
                inner = self.reads_apart(name) is not None
                own = self.base_layer(self._read(x, [name]), *args, **kwargs) if inner else plain
                y = y + (self._written(own, name) - plain)
        return y

    def _writes(self, adapter: str) -> bool:
        """Whether the adapter edits the output after the layer has run."""
        return not self._bent[adapter] and self.map_at("output", adapter) is not None

    def _read(self, x: Tensor, adapters: Sequence[str]) -> Tensor:
        """x̂ = x + Σ s φ ψ x over the input maps; the sum is made in the maps' dtype, then cast to that of x."""
        maps = {name: shared for name in adapters if (shared := self.reads_apart(name)) is not None}
        edited = x
        for name, shared in maps.items():
            if len(maps) > 1:  # one cast after the last
                edited = edited.to(shared.up.dtype)
            edited = self._add(edited, x, shared, name)
        return edited.to(x.dtype)

    def _read_together(self, x: Tensor, adapter: str) -> Tensor:
        """x̂ of one adapter, made by the first layer of the block that reads x with this map."""
        shared = self.reads_apart(adapter)
        assert shared is not None and self.input_scope is not None
        state = (adapter, self.scale[adapter], self.training)
        return self.input_scope.read(
            shared, x, self.readers[adapter], state, lambda v: self._add(v, v, shared, adapter)
        )

    def _written(self, y: Tensor, adapter: str) -> Tensor:
        """y + s φ ψ (y − b): the edit of W x, which leaves the bias out unless the adapter edits it too."""
        shared = self.map_at("output", adapter)
        assert shared is not None
        bias = None if self.edits_bias[adapter] or not self._has_bias() else self.bias
        return self._add(y, y if bias is None else y - bias, shared, adapter)

    def _beside(self, x: Tensor, adapters: Sequence[str], y: Tensor) -> Tensor:
        """y + Σ s U V x over the parallel maps, and over the adapters that bend W."""
        for name in adapters:
            if self._bent[name]:
                factors = self._factors(name)
                y = add_low_rank(y, self.shared_dropout[name](x), factors.B, factors.A, 1.0)
            elif (shared := self.map_at("parallel", name)) is not None:
                y = self._add(y, x, shared, name)
        return y

    def _add(self, y: Tensor, v: Tensor, shared: SharedMap, adapter: str) -> Tensor:
        dropped = self.shared_dropout[adapter](v) if self.training else v
        up, down = shared.up, shared.down
        if up.device != v.device:  # a shared map lies on one device, its layers perhaps on several
            up, down = up.to(v.device), down.to(v.device)
        return add_low_rank(y, dropped, up, down, self.scale[adapter])

    def _factors(self, adapter: str) -> LoraFactors:
        """Return A and B of an adapter that bends W; in evaluation they are kept until a parameter changes."""
        if self.training or torch.is_grad_enabled():
            self._kept_factors.clear()
            return lora_factors(self._logical_weight(), self.edit(adapter))
        maps = (shared for place in self.attribute_of if (shared := self.map_at(place, adapter)) is not None)
        sources = [self.weight, *(parameter for shared in maps for parameter in shared.parameters())]
        if any(source.is_inference() for source in sources):  # such a tensor does not count its versions
            return lora_factors(self._logical_weight(), self.edit(adapter))
        versions = [(source, source.dtype, source.device, source._version) for source in sources]
        kept = self._kept_factors.get(adapter)
        if kept is None or len(kept[0]) != len(versions) or not all(map(_same, kept[0], versions)):
            kept = versions, lora_factors(self._logical_weight(), self.edit(adapter))
            self._kept_factors[adapter] = kept
        return kept[1]

    def _mixed_batch(self, x: Tensor, names: list[str], args: tuple, kwargs: dict) -> Tensor:
        if len(names) != len(x):
            raise ValueError(f"got {len(names)} adapter_names for a batch of {len(x)} rows; give one name per row")
        if self.merged:
            raise ValueError("adapter_names cannot be used while adapters are merged; call unmerge_adapter() first")
        y: Tensor | None = None
        for name in dict.fromkeys(names):
            rows = torch.tensor([i for i, other in enumerate(names) if other == name], device=x.device)
            part = self._edited(x[rows], [name] if name in self.scale else [], args, kwargs)
            y = part.new_empty((len(x), *part.shape[1:])) if y is None else y
            y = y.index_copy(0, rows, part)
        assert y is not None
        return y


def share_inputs(model: nn.Module, adapter: str) -> None:
    """Let layers of one block that read with the same map compute the edited input once (see `input_sharing`)."""
    for block in model.modules():
        layers = [child for child in block.children() if isinstance(child, SharedLayer) and adapter in child.scale]
        members: dict[SharedMap, list[SharedLayer]] = {}
        for layer in layers:
            if (shared := layer.reads_apart(adapter)) is not None:
                members.setdefault(shared, []).append(layer)
        together = [group for group in members.values() if len(group) > 1]
        scopes = [layer.input_scope for layer in layers if layer.input_scope is not None]
        scope = scopes[0] if scopes else InputScope.around(block) if together else None
        for group in together:
            for layer in group:
                layer.input_scope, layer.readers[adapter] = scope, len(group)


def _same(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    return old[0] is new[0] and old[1:] == new[1:]
