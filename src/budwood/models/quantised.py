"""Quantised layers made fit for training: gradients that are right, and layers that adapters can wrap."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from budwood.errors import NotSupportedError

log = logging.getLogger(__name__)

COLUMNS = 1024  # of the weight that are read at once: bounds the memory


def settle_quantised(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return a freshly loaded model fit for training; one that is not quantised comes back as it is.

    Args:
        model: what `from_pretrained` returned; used up.
        dtype: the precision that was asked for; stored models of bitsandbytes come in the one they were saved in, and
            AutoRound forces its own.
    """
    if getattr(model, "hf_quantizer", None) is None:
        return model
    keep_differentiable(model)
    # One line for each layer and pass: LLM.int8 computes in fp16, whatever the base's precision.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    packed = [name for name, module in model.named_modules() if _is_auto_round(module)]
    if packed:
        return _unpacked(model, packed, dtype)
    for parameter in model.parameters():
        if type(parameter.data) is Tensor and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return model


def _unpacked(model: PreTrainedModel, packed: list[str], dtype: torch.dtype) -> PreTrainedModel:
    """Return a new model with plain layers: AutoRound has cast buffers too, and rotary frequencies need fp32."""
    log.info("%d AutoRound layers are dequantised: PEFT has no adapters for packed ones", len(packed))
    for name in packed:
        layer = model.get_submodule(name)
        model.set_submodule(name, plain_linear(layer, weight_by_identity(layer, layer.infeatures), dtype))
    remove_quantisation(model)
    name, place = model.name_or_path, {"": model.device} if model.device.type != "cpu" else None
    made = type(model).from_pretrained(
        None, config=model.config, state_dict=model.state_dict(), dtype=dtype, device_map=place
    )
    made.name_or_path = made.config._name_or_path = name
    made.generation_config = model.generation_config
    return made


def keep_differentiable(model: nn.Module) -> None:
    """Keep bitsandbytes' 4-bit layers from repacking their weights on a CPU; after that they have no gradient.

    On CPUs with AVX512-BF16, `Linear4bit` repacks its weight in the first forward pass of an evaluation, and from then
    on computes with a kernel that autograd does not know: whatever is trained below such a layer gets no gradient, and
    the loss looks normal (bitsandbytes 0.50). Repacked weights cannot be had back exactly: bitsandbytes rounds their
    scales to bf16, and restores their order only where they are quantised too.

    Raises:
        NotSupportedError: the weights are repacked already.
    """
    for name, module in model.named_modules():
        if not hasattr(module, "support_avx512bf16_for_cpu"):
            continue
        if getattr(getattr(module.weight, "quant_state", None), "packing_format_for_cpu", False):
            raise NotSupportedError(
                f"bitsandbytes has repacked the weight of {name} in an evaluation; it would train without a gradient",
                wanted="a 4-bit model that has not been evaluated yet",
                action="load the model again, and put the adapter onto it before it is evaluated",
            )
        module.support_avx512bf16_for_cpu = False


def weight_by_identity(layer: nn.Module, in_features: int) -> Float[Tensor, "d_out d_in"]:
    """Return the weight that a linear layer multiplies by, in fp32: its answers to the unit vectors.

    Args:
        layer: maps x (n, d_in) to W x + b.
        in_features: d_in.
    """
    example = floating_tensor(layer)
    unit = torch.eye(in_features, device=example.device, dtype=example.dtype)
    with torch.no_grad(), unbiased(layer):
        return torch.cat([layer(rows).float() for rows in unit.split(COLUMNS)]).T.contiguous()


def floating_tensor(layer: nn.Module) -> Tensor:
    """Return a floating-point tensor of the layer: where and in which precision it computes; fp32 if it has none."""
    tensors = [*layer.parameters(), *layer.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    return next((t for t in tensors if t.dtype.is_floating_point), torch.empty(0, device=device))


@contextlib.contextmanager
def unbiased(layer: nn.Module) -> Iterator[None]:
    """Let the layer compute W x instead of W x + b: in 16 bits, b taken off afterwards would leave its rounding."""
    bias = getattr(layer, "bias", None)
    if not isinstance(bias, Tensor):
        yield
        return
    kept = bias.detach().clone()
    bias.data.zero_()
    try:
        yield
    finally:
        bias.data.copy_(kept)


def plain_linear(layer: nn.Module, weight: Float[Tensor, "d_out d_in"], dtype: torch.dtype) -> nn.Linear:
    """Return an ordinary, frozen linear layer in `dtype` with `weight` and with the bias of `layer`, if it has one."""
    bias = getattr(layer, "bias", None)
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().to(weight.device, dtype), requires_grad=False)
    return made


def remove_quantisation(model: PreTrainedModel) -> None:
    """Let a model whose quantised layers were replaced forget that it was quantised, so that it can be saved."""
    if getattr(model, "hf_quantizer", None) is not None:
        model.hf_quantizer.remove_quantization_config(model)


def _is_auto_round(module: nn.Module) -> bool:
    return type(module).__module__.startswith("auto_round") and hasattr(module, "qweight")
