"""Load-time quantisation: the settings behind the suffix of a model reference."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedConfig, QuantoConfig

from budwood.errors import ModelError
from budwood.models.reference import ModelReference

_BACKENDS = {"nf4": "bitsandbytes", "fp4": "bitsandbytes", "int8": "bitsandbytes", "int4": "optimum.quanto"}


def quantisation_config(reference: ModelReference, config: PreTrainedConfig, compute: torch.dtype) -> Any:
    """Return transformers' settings for the reference's suffix, or None if it has none.

    Args:
        reference: the model reference.
        config: the base's configuration, to refuse one that is quantised already.
        compute: the precision that 4-bit weights are multiplied in.

    Raises:
        ModelError: the backend is not installed, or the base is quantised already.
    """
    kind = reference.quantisation
    if kind is None:
        return None
    if "quantization_config" in config.to_dict():
        raise ModelError(f"{reference.location} is quantised already", action=f"drop '+{kind}'")
    backend = _BACKENDS[kind]
    if not _installed(backend):
        raise ModelError(
            f"'+{kind}' needs {backend}, which is not installed",
            action=f"pip install 'budwood[quant]', or drop '+{kind}'",
        )
    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    if kind == "int4":
        return QuantoConfig(weights="int4")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_use_double_quant=kind == "nf4",
    )


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False
