"""What a quantised base needs, told before any weight is read: packages, and the settings behind a suffix.

A base is quantised while it is loaded (`MODEL+nf4`) or lies quantised on the disk (`quantization_config` in its
config.json). `quantised.py` makes what comes out fit for training.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedConfig, TorchAoConfig

from budwood.errors import ModelError
from budwood.models.files import CONFIG
from budwood.models.reference import ModelReference
from budwood.models.source import Source
from budwood.storage import read_json

EXTRA = "pip install 'budwood[quantised]'"

SUFFIX_PACKAGES = {"nf4": "bitsandbytes", "fp4": "bitsandbytes", "int8": "bitsandbytes", "int8wo": "torchao"}
"""Suffix of a reference -> the package that quantises so."""

STORED_PACKAGES = {
    "bitsandbytes": ("bitsandbytes",),
    "compressed-tensors": ("compressed_tensors",),
    "torchao": ("torchao",),
    "auto-round": ("auto_round",),
    "gptq": ("gptqmodel", "optimum"),
    "awq": ("gptqmodel",),
}
"""`quant_method` of a stored model -> the packages that transformers reads it with."""

LOADED_DENSE = frozenset({"compressed-tensors", "auto-round"})
"""Stored methods whose packed layers PEFT cannot adapt: their weights are dequantised while they are loaded."""


def stored_method(config: PreTrainedConfig | dict[str, Any]) -> str | None:
    """Return how the weights on the disk are quantised ("gptq", "torchao", …), or None."""
    values = config if isinstance(config, dict) else config.to_dict()
    settings = values.get("quantization_config")
    if not settings:
        return None
    return str((settings if isinstance(settings, dict) else settings.to_dict()).get("quant_method", "bitsandbytes"))


def is_quantised(source: Source) -> bool:
    """Whether the base is quantised in memory or on the disk; nothing is loaded."""
    return bool(source.reference.quantisation or stored_method(read_json(source.folder / CONFIG)))


def check_quantisation(reference: ModelReference, config: PreTrainedConfig) -> None:
    """Refuse a quantised base that cannot be loaded here; nothing is loaded to find out.

    Raises:
        ModelError: a package is not installed, or the base is quantised already.
    """
    suffix, stored = reference.quantisation, stored_method(config)
    if suffix and stored:
        raise ModelError(f"{reference.location} is quantised already ({stored})", action=f"drop '+{suffix}'")
    needed = (SUFFIX_PACKAGES[suffix],) if suffix else STORED_PACKAGES.get(stored or "", ())
    missing = [package.replace("_", "-") for package in needed if not _installed(package)]
    if not missing:
        return
    what = f"'+{suffix}'" if suffix else f"{reference.location}, whose weights are stored as {stored},"
    install = f"pip install {' '.join(missing)}" if stored in ("gptq", "awq") else EXTRA
    otherwise = f"drop '+{suffix}'" if suffix else "take the unquantised model"
    raise ModelError(
        f"{what} needs {' and '.join(missing)}, which is not installed",
        action=f"{install}, or {otherwise}",
    )


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def quantisation_options(reference: ModelReference, config: PreTrainedConfig, compute: torch.dtype) -> dict[str, Any]:
    """Return what `from_pretrained` must be told so that the base comes out quantised as the reference says.

    Args:
        reference: the model reference.
        config: the base's configuration. If its weights are stored as compressed-tensors, it is told to dequantise
            them: transformers does so at the first forward pass anyway, and before that there is nothing to adapt.
        compute: the precision that 4-bit weights are multiplied in.

    Raises:
        ModelError: see `check_quantisation`.
    """
    check_quantisation(reference, config)
    if stored_method(config) == "compressed-tensors":
        config.quantization_config = dict(config.quantization_config) | {"dequantize": True}
    if reference.quantisation is None:
        return {}
    return {"quantization_config": _settings(reference.quantisation, compute)}


def _settings(suffix: str, compute: torch.dtype) -> BitsAndBytesConfig | TorchAoConfig:
    if suffix == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    if suffix == "int8wo":
        from torchao.quantization import Int8WeightOnlyConfig

        return TorchAoConfig(Int8WeightOnlyConfig())
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=suffix,
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_use_double_quant=suffix == "nf4",
    )
