"""Which modules can be adapted as linear layers, how wide they are, and what a quantised one multiplies by."""

from __future__ import annotations

from peft.tuners.tuners_utils import _get_in_out_features
from peft.utils.quantization_utils import QuantizationBackend, resolve_quantization_backend
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from budwood.errors import NotSupportedError
from budwood.models.quantised import weight_by_identity
from budwood.tuning.adapted_linear import AdaptedLinear


def refuse_unless_linear(name: str, module: nn.Module, model: nn.Module) -> None:
    """Refuse a target that is no linear layer, or one whose weight is used without a call.

    Raises:
        NotSupportedError: names the module and its class.
    """
    parent = model.get_submodule(name.rpartition(".")[0])
    inside = isinstance(parent, nn.MultiheadAttention)  # it reads its parts' weights without calling them
    if inside or not _is_linear(module):
        kind = "a part of nn.MultiheadAttention" if inside else type(module).__name__
        raise NotSupportedError(
            f"{name} is {kind}", wanted="a linear layer that is called as one", action="leave it out of target_modules"
        )


def refuse_unless_readable(name: str, module: nn.Module) -> None:
    """Refuse a layer that hides its weight.

    Raises:
        NotSupportedError: names the module and its class.
    """
    backend = module.quantization_backend if isinstance(module, AdaptedLinear) else _backend(module)
    if backend is not None and not backend.supports_merge:
        raise NotSupportedError(
            f"{name} is a {type(module).__name__}, which does not give its weight back, and a nonlinear or a"
            " sliced update is computed from the weight",
            wanted="a base whose weights can be read",
            action="set the nonlinearity to identity and share no slices of it, or load the base unquantised",
        )


def layer_sizes(module: nn.Module) -> tuple[int, int]:
    """Return (d_in, d_out) of a linear layer, or of the layer that an adapted one wraps."""
    if isinstance(module, AdaptedLinear):
        return module.in_features, module.out_features
    return _get_in_out_features(module)


def effective_weight(module: nn.Module) -> Tensor | None:
    """Return the (d_out, d_in) weight that a quantised linear layer stands for, in fp32; None for any other module.

    It is what the layer's library dequantises to; a layer that hides its weight is asked with the unit vectors.
    """
    backend = _backend(module)
    if backend is None or backend.layer_type != "linear":
        return None
    if backend.supports_merge:
        return backend.get_base_weight(module).detach().float()
    return weight_by_identity(module, layer_sizes(module)[0])


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, AdaptedLinear | nn.Linear | Conv1D):
        return True
    backend = _backend(module)
    return backend is not None and backend.layer_type == "linear"


def _backend(module: nn.Module) -> QuantizationBackend | None:
    return resolve_quantization_backend(module, get_apply_tensor_subclass=lambda *_: None)
