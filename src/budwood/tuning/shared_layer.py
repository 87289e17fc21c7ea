"""A PEFT tuner layer whose low-rank maps are shared with other layers.

A method subclasses `SharedMap` (its parameters and their names) and `SharedLayer` (which places it uses); attaching,
several adapters, mixed batches, merging and the exact LoRA factors are written here once.

The shared object is a *module* that sits in the ModuleDict of every layer that uses it. So PEFT's own bookkeeping
(set_adapter, casting, `.to`, deepcopy, loading with `assign=True`) keeps it shared; a bare parameter would be rebound.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from peft.utils.quantization_utils import QuantizationBackend
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from budwood.errors import NotSupportedError
from budwood.tuning.edits import Edit, LowRankMap, Place, delta_bias, delta_weight, lora_factors
from budwood.tuning.factors import LoraFactors

BASE = "__base__"  # PEFT's name, in a mixed batch, for rows that use no adapter


class SharedMap(nn.Module):
    """The parameters of one low-rank map v -> up (down v). A subclass names its parameters as its paper does."""

    @property
    @abstractmethod
    def up(self) -> Tensor:
        """U, shape (d', r)."""

    @property
    @abstractmethod
    def down(self) -> Tensor:
        """V, shape (r, d)."""


@dataclass(frozen=True)
class AdapterSpec:
    """What one adapter brings to one layer."""

    maps: dict[Place, SharedMap]
    groups: dict[Place, str]
    scale: float
    dropout: float
    edits_bias: bool


class SharedLayer(nn.Module, BaseTunerLayer):
    """Wraps a linear layer; each adapter edits its input, its output, or adds beside it.

    Args:
        base_layer: nn.Linear, transformers' Conv1D, or a quantised linear layer.
        in_features, out_features: widths of the base layer.
        backend: PEFT's access to a quantised weight; None for a plain one.
    """

    attribute_of: ClassVar[dict[Place, str]]  # where the ModuleDict of each place is, e.g. {"input": "gift_in"}
    other_param_names: tuple[str, ...] = ("scale", "groups", "edits_bias", "shared_dropout")

    def __init__(
        self, base_layer: nn.Module, in_features: int, out_features: int, backend: QuantizationBackend | None
    ) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.in_features, self.out_features = in_features, out_features
        self.quantization_backend = backend
        self.scale: dict[str, float] = {}
        self.groups: dict[str, dict[Place, str]] = {}
        self.edits_bias: dict[str, bool] = {}
        self.shared_dropout = nn.ModuleDict()
        for attribute in self.attribute_of.values():
            setattr(self, attribute, nn.ModuleDict())
        self._disable_adapters = False
        self.merged_adapters: list[str] = []
        self._kept_weight: Tensor | None = None  # the weight before the first merge, on the CPU
        self._kept_bias: Tensor | None = None

    # --- adapters -----------------------------------------------------------------------------------------------

    def add(self, adapter: str, spec: AdapterSpec, inference_mode: bool) -> None:
        """Give this layer the maps of one adapter."""
        self.scale[adapter] = spec.scale
        self.groups[adapter] = dict(spec.groups)
        self.edits_bias[adapter] = spec.edits_bias and self._has_bias()
        self.shared_dropout[adapter] = nn.Dropout(spec.dropout) if spec.dropout else nn.Identity()
        for place, shared in spec.maps.items():
            getattr(self, self.attribute_of[place])[adapter] = shared
        self.set_adapter(self.active_adapters, inference_mode=inference_mode)

    def map_at(self, place: Place, adapter: str) -> SharedMap | None:
        """Return the adapter's map at `place`; None where it has none."""
        attribute = self.attribute_of.get(place)
        maps = getattr(self, attribute) if attribute else {}
        return maps[adapter] if adapter in maps else None

    def edit(self, adapter: str) -> Edit:
        """Return the adapter's maps with their scale, detached, in fp32."""
        maps = {place: self.map_at(place, adapter) for place in self.attribute_of}
        return {
            place: LowRankMap(shared.up.detach().float(), shared.down.detach().float(), self.scale[adapter])
            for place, shared in maps.items()
            if shared is not None
        }

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
        if self.disable_adapters:
            if self.merged:
                self.unmerge()
            return self.base_layer(x, *args, **kwargs)
        if adapter_names is not None:
            return self._mixed_batch(x, adapter_names, args, kwargs)
        if self.merged:
            return self.base_layer(x, *args, **kwargs)
        return self._edited(x, self._active(), args, kwargs)

    def _active(self) -> list[str]:
        return [name for name in self.active_adapters if name in self.scale]

    def _edited(self, x: Tensor, adapters: Sequence[str], args: tuple, kwargs: dict) -> Tensor:
        """Return the output under the sum of the adapters' ΔW.

        Adapters without an output map share one base call. An output map acts on its own adapter's W x̂, so several
        adapters of which one edits the output need a base call each.
        """
        after = [name for name in adapters if self.map_at("output", name) is not None]
        if len(adapters) == 1 and after:
            y = self.base_layer(self._read(x, adapters), *args, **kwargs)
            return self._written(y, adapters[0]) + self._beside(x, adapters, y)
        before = [name for name in adapters if name not in after]
        y = self.base_layer(self._read(x, before), *args, **kwargs)
        y = y + self._beside(x, adapters, y)
        if after:
            plain = self.base_layer(x, *args, **kwargs)
            for name in after:
                inner = self.map_at("input", name) is not None
                own = self.base_layer(self._read(x, [name]), *args, **kwargs) if inner else plain
                y = y + (self._written(own, name) - plain)
        return y

    def _read(self, x: Tensor, adapters: Sequence[str]) -> Tensor:
        """x̂ = x + Σ s φ ψ x over the input maps; the sum is made in the maps' dtype, then cast to that of x."""
        total: Tensor | None = None
        for name in adapters:
            shared = self.map_at("input", name)
            if shared is not None:
                change = self._low_rank(shared, x, name)
                total = change if total is None else total + change
        return x if total is None else (x + total).to(x.dtype)

    def _written(self, y: Tensor, adapter: str) -> Tensor:
        """y + s φ ψ (y − b): the edit of W x, which leaves the bias out unless the adapter edits it too."""
        shared = self.map_at("output", adapter)
        assert shared is not None
        bias = None if self.edits_bias[adapter] or not self._has_bias() else self.bias
        return (y + self._low_rank(shared, y if bias is None else y - bias, adapter)).to(y.dtype)

    def _beside(self, x: Tensor, adapters: Sequence[str], y: Tensor) -> Tensor | float:
        """Σ s U V x over the parallel maps; 0.0 where there are none."""
        total: Tensor | float = 0.0
        for name in adapters:
            shared = self.map_at("parallel", name)
            if shared is not None:
                total = total + self._low_rank(shared, x, name).to(y.dtype)
        return total

    def _low_rank(self, shared: SharedMap, v: Tensor, adapter: str) -> Tensor:
        up, down = shared.up.to(v.device), shared.down.to(v.device)
        hidden = F.linear(self.shared_dropout[adapter](v.to(down.dtype)), down)
        return F.linear(hidden * self.scale[adapter], up)

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

    # --- weights ------------------------------------------------------------------------------------------------

    def _has_bias(self) -> bool:
        return getattr(self.get_base_layer(), "bias", None) is not None

    def _is_transposed(self) -> bool:
        return isinstance(self.get_base_layer(), Conv1D)  # Conv1D keeps (in, out)

    def _logical_weight(self) -> Tensor:
        """Return the weight before any merge as (d_out, d_in) in fp32."""
        weight = self._kept_weight if self._kept_weight is not None else self._readable_weight()
        weight = weight.to(self.weight.device).float()
        return weight.T if self._is_transposed() else weight

    def _readable_weight(self) -> Tensor:
        backend = self.quantization_backend
        if backend is not None and not backend.supports_merge:
            kind = backend.backend_name or type(self.get_base_layer()).__name__
            raise NotSupportedError(
                f"a {kind} layer does not give its weight back",
                wanted="a base whose weights can be read",
                action="load the unquantised base for merging or exporting",
            )
        return self.get_base_weight()

    def lora_factors(self, adapter: str) -> LoraFactors:
        """Return the exact LoRA factors of the adapter at this layer, in fp32.

        Raises:
            NotSupportedError: the adapter changes the bias too, which a LoRA cannot hold; or the weight is opaque.
        """
        if self.edits_bias[adapter] and self.map_at("output", adapter) is not None:
            raise NotSupportedError(
                "this adapter edits biases as well (output_edits_bias=True), which a LoRA cannot hold",
                action="merge it into the base with merge_and_unload()",
            )
        with torch.no_grad():
            return lora_factors(self._logical_weight(), self.edit(adapter))

    def supports_lora_conversion(self, adapter_name: str = "default") -> bool:
        """Whether PEFT's own (approximate) conversion may be used; ours is `lora_factors`."""
        return not self.edits_bias.get(adapter_name, False)

    def get_delta_weight(self, adapter: str) -> Tensor:
        """Return ΔW in the layout and dtype of the base weight, from the weight before any merge."""
        with torch.no_grad():
            delta = delta_weight(self._logical_weight(), self.edit(adapter))
        return (delta.T if self._is_transposed() else delta).to(self._float_dtype())

    def _float_dtype(self) -> torch.dtype:
        return self.weight.dtype if self.weight.is_floating_point() else torch.float32

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Put ΔW of the adapters into the base weight.

        Every ΔW is computed from the weight before the first merge, and the sum is made in fp32 and cast once; so two
        adapters merged one after the other equal both active, and `unmerge` restores the weight byte for byte.

        Args:
            safe_merge: refuse a result that is not finite and leave the weight as it is.
        """
        names = [name for name in check_adapters_to_merge(self, adapter_names) if name in self.scale]
        if not names:
            return
        merged = [*self.merged_adapters, *names]
        weight, bias = self._merged_values(merged)
        if safe_merge and not (torch.isfinite(weight).all() and (bias is None or torch.isfinite(bias).all())):
            raise ValueError(f"NaNs detected in the merged weights. The adapter(s) {', '.join(names)} seem broken")
        if self._kept_weight is None:
            self._kept_weight = self._readable_weight().detach().to("cpu", copy=True)
            self._kept_bias = self.bias.detach().to("cpu", copy=True) if bias is not None else None
        self.set_base_weight(weight)
        if bias is not None:
            self.get_base_layer().bias.data = bias
        self.merged_adapters = merged

    @torch.no_grad()
    def _merged_values(self, adapters: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        original = self._logical_weight()
        weight = original + sum(delta_weight(original, self.edit(name)) for name in adapters)
        weight = (weight.T if self._is_transposed() else weight).to(self._float_dtype()).contiguous()
        editing = [name for name in adapters if self.edits_bias[name] and self.map_at("output", name) is not None]
        if not editing and self._kept_bias is None:
            return weight, None
        kept = (self._kept_bias if self._kept_bias is not None else self.bias).to(self.weight.device).float()
        bias = kept + sum(delta_bias(kept, self.edit(name)) for name in editing)
        return weight, bias.to(self.bias.dtype)

    def unmerge(self) -> None:
        """Restore the base weight, byte for byte."""
        if not self.merged:
            return
        assert self._kept_weight is not None
        self.set_base_weight(self._kept_weight.to(self.weight.device))
        if self._kept_bias is not None:
            self.get_base_layer().bias.data = self._kept_bias.to(self.weight.device)
        self._kept_weight = self._kept_bias = None
        self.merged_adapters = []
