"""A linear layer whose weight adapters change: reading the weight, merging into it, and the exact LoRA factors.

What an adapter does is an `Edit`; a subclass says which (`edit`) and computes the edited forward pass.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from peft.utils.quantization_utils import QuantizationBackend
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from budwood.errors import NotSupportedError
from budwood.tuning.edits import Edit, Weight, delta_bias, delta_weight, lora_factors
from budwood.tuning.factors import LoraFactors
from budwood.tuning.opaque import OpaqueWeight


class AdaptedLinear(nn.Module, BaseTunerLayer):
    """Wraps a linear layer that adapters edit.

    Args:
        base_layer: nn.Linear, transformers' Conv1D, or a quantised linear layer.
        in_features, out_features: widths of the base layer.
        backend: PEFT's access to a quantised weight; None for a plain one.
    """

    def __init__(
        self, base_layer: nn.Module, in_features: int, out_features: int, backend: QuantizationBackend | None
    ) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.in_features, self.out_features = in_features, out_features
        self.quantization_backend = backend
        self.edits_bias: dict[str, bool] = {}
        self._disable_adapters = False
        self.merged_adapters: list[str] = []
        self._kept_weight: Tensor | None = None  # the weight before the first merge, on the CPU
        self._kept_bias: Tensor | None = None

    @abstractmethod
    def edit(self, adapter: str) -> Edit:
        """Return what the adapter does to this layer."""

    # --- the weight ---------------------------------------------------------------------------------------------

    def _has_bias(self) -> bool:
        return getattr(self.get_base_layer(), "bias", None) is not None

    def _is_transposed(self) -> bool:
        return isinstance(self.get_base_layer(), Conv1D)  # Conv1D keeps (in, out)

    def _is_readable(self) -> bool:
        return self.quantization_backend is None or self.quantization_backend.supports_merge

    def _readable_weight(self) -> Tensor:
        backend = self.quantization_backend
        if backend is not None and not backend.supports_merge:
            kind = backend.backend_name or type(self.get_base_layer()).__name__
            raise NotSupportedError(
                f"a {kind} layer does not give its weight back",
                wanted="a base whose weights can be read",
                action="load the unquantised base for merging; exporting as a LoRA works on this one",
            )
        return self.get_base_weight()

    def _logical_weight(self) -> Tensor:
        """Return the weight before any merge as (d_out, d_in) in fp32, or in fp64 where the base is."""
        weight = self._kept_weight if self._kept_weight is not None else self._readable_weight()
        weight = weight.to(self.weight.device, torch.promote_types(weight.dtype, torch.float32))
        return weight.T if self._is_transposed() else weight

    def _weight_or_layer(self) -> Weight | Tensor:
        """Return the logical weight; for a layer that hides it, what multiplies by running the layer."""
        if self._is_readable():
            return self._logical_weight()
        return OpaqueWeight(self.get_base_layer(), self.in_features)

    # --- what an adapter amounts to ---------------------------------------------------------------------------------

    def _changes_bias(self, adapter: str) -> bool:
        return self.edits_bias[adapter] and "output" in self.edit(adapter)

    def lora_factors(self, adapter: str) -> LoraFactors:
        """Return the exact LoRA factors of the adapter at this layer, in fp32.

        Raises:
            NotSupportedError: the adapter changes the bias too, which a LoRA cannot hold; or the weight can neither be
                read nor multiplied with.
        """
        if self._changes_bias(adapter):
            raise NotSupportedError(
                "this adapter edits biases as well (output_edits_bias=True), which a LoRA cannot hold",
                action="merge it into the base with merge_and_unload()",
            )
        with torch.no_grad():
            factors = lora_factors(self._weight_or_layer(), self.edit(adapter))
        return LoraFactors(A=factors.A.float(), B=factors.B.float())

    def supports_lora_conversion(self, adapter_name: str = "default") -> bool:
        """Whether PEFT's own (approximate) conversion may be used; ours is `lora_factors`."""
        return not self.edits_bias.get(adapter_name, False)

    @torch.no_grad()
    def get_delta_weight(self, adapter: str) -> Tensor:
        """Return ΔW in the layout and dtype of the base weight, from the weight before any merge."""
        delta = delta_weight(self._weight_or_layer(), self.edit(adapter))
        return (delta.T if self._is_transposed() else delta).to(self._float_dtype())

    def _float_dtype(self) -> torch.dtype:
        return self.weight.dtype if self.weight.is_floating_point() else torch.float32

    # --- merging ------------------------------------------------------------------------------------------------

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Put ΔW of the adapters into the base weight.

        Every ΔW is computed from the weight before the first merge, and the sum is made in fp32 and cast once; so two
        adapters merged one after the other equal both active, and `unmerge` restores the weight byte for byte.

        Args:
            safe_merge: refuse a result that is not finite and leave the weight as it is.
        """
        names = [name for name in check_adapters_to_merge(self, adapter_names) if name in self.edits_bias]
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
        editing = [name for name in adapters if self._changes_bias(name)]
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
