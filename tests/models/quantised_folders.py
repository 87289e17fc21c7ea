"""The tiny Llama quantised in every way that runs on a CPU, each as a model reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from budwood.models import load_base
from budwood.models.quantisation import STORED_PACKAGES, SUFFIX_PACKAGES
from tests import tiny

GROUP = 16
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def llama() -> nn.Module:
    """64 wide: AutoRound packs 32 columns into one row of words."""
    return tiny.llama(hidden_size=64, intermediate_size=128)


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight to 4 bits in groups of `GROUP` inputs; return the codes -8 … 7 and the scales (out, groups)."""
    groups = weight.detach().reshape(len(weight), -1, GROUP)
    scales = (groups.abs().amax(-1) / 7).half().float()
    return (groups / scales[..., None]).round().clamp(-8, 7).reshape(weight.shape), scales


def rounded_weight(weight: Tensor) -> Tensor:
    codes, scales = rounded(weight)
    return codes * scales.repeat_interleave(GROUP, 1)


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if name.rpartition(".")[2] in LINEAR}


def compressed_tensors(folder: Path) -> str:
    """Packed by the library itself, from the codes of `rounded`."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, apply_quantization_config

    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    groups = {"all": {"targets": ["Linear"], "weights": weights}}
    model = llama()
    apply_quantization_config(
        model, QuantizationConfig(config_groups=groups, ignore=["lm_head"], format="pack-quantized")
    )
    for layer in linear_layers(model).values():
        layer.weight_scale.data = rounded(layer.weight)[1]
        layer.weight_zero_point.data.zero_()
        layer.quantization_status = QuantizationStatus.FROZEN
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    tiny.save(model, folder)
    compressor.update_config(folder)
    return str(folder)


def auto_round(folder: Path) -> str:
    """Packed by hand into the layout that AutoRound writes (that of GPTQ, eight 4-bit numbers a word)."""
    model = llama()
    tiny.save(model, folder)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    for name, layer in linear_layers(model).items():
        del tensors[f"{name}.weight"]
        codes, scales = rounded(layer.weight)
        zeros = torch.full((scales.shape[1], len(codes)), 7)  # AutoRound adds 1, as GPTQ's first format does
        tensors[f"{name}.qweight"] = packed((codes.T + 8).int(), dim=0)
        tensors[f"{name}.qzeros"] = packed(zeros.int(), dim=1)
        tensors[f"{name}.scales"] = scales.T.half().contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(
        folder,
        quantization_config={
            "quant_method": "auto-round",
            "bits": 4,
            "group_size": GROUP,
            "sym": True,
            "data_type": "int",
            "packing_format": "auto_round:auto_gptq",
            "block_name_to_quantize": "model.layers",
        },
    )
    return str(folder)


def packed(codes: Tensor, dim: int) -> Tensor:
    """Put eight numbers 0 … 15 that follow each other in `dim` into one int32, the first in the lowest bits."""
    eights = codes.long().unflatten(dim, (-1, 8))
    shifts = 4 * torch.arange(8)
    words = (eights << (shifts[:, None] if dim == 0 else shifts)).sum(dim + 1)
    return torch.where(words >= 2**31, words - 2**32, words).int()  # the highest bit is the sign


def saved(suffix: str) -> Callable[[Path], str]:
    """Quantise with a suffix and save: a model that lies quantised on the disk."""

    def make(folder: Path) -> str:
        base = load_base(f"{plain(folder.with_name('full'))}+{suffix}", device="cpu", dtype="float32")
        return str(tiny.save(base.model, folder))

    return make


def plain(folder: Path) -> str:
    return str(tiny.save(llama(), folder))


def with_suffix(suffix: str) -> Callable[[Path], str]:
    return lambda folder: f"{plain(folder)}+{suffix}"


MAKERS: dict[str, Callable[[Path], str]] = {
    **{f"+{suffix}": with_suffix(suffix) for suffix in SUFFIX_PACKAGES},
    "bitsandbytes": saved("nf4"),
    "torchao": saved("int8wo"),
    "compressed-tensors": compressed_tensors,
    "auto-round": auto_round,
}
"""Kind of quantisation -> what writes such a model into a folder and returns its reference."""


def made(kind: str, folder: Path) -> str:
    """Return the reference of a tiny model of this kind; skip where its package is missing."""
    packages = (SUFFIX_PACKAGES[kind[1:]],) if kind.startswith("+") else STORED_PACKAGES[kind]
    for package in packages:
        pytest.importorskip(package)
    return MAKERS[kind](folder)


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def twin(reference: str, dtype: str = "float32") -> nn.Module:
    """The same base with plain layers, made without budwood: the identity pushed through every linear layer."""
    base = load_base(reference, device="cpu", dtype=dtype).model.train()  # int8 rounds no inputs in training
    weights = {}
    with torch.no_grad():
        for name, layer in linear_layers(base).items():
            width = getattr(layer, "in_features", None)
            weights[f"{name}.weight"] = layer(torch.eye(width, dtype=base.dtype)).T.contiguous()
    model = AutoModelForCausalLM.from_config(llama().config, dtype=base.dtype)
    model.load_state_dict({**llama().to(base.dtype).state_dict(), **rest(base), **weights})
    return model.eval()


def rest(model: nn.Module) -> dict[str, Tensor]:
    """The weights that no method quantises."""
    return {name: p for name, p in model.state_dict().items() if "embed" in name or "norm" in name or "head" in name}
