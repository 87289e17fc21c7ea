"""A reference in, a ready base out. The names are loaded when first used: `ModelReference` alone needs no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from budwood.models.fingerprint import fingerprint_file, fingerprint_files
    from budwood.models.load import Base, empty_model, load_base, load_config, load_tokenizer
    from budwood.models.precision import choose_device, choose_dtype
    from budwood.models.reference import ModelReference
    from budwood.models.sites import Hit, Site, find_sites, hit_table, matching_sites, resolve_targets
    from budwood.models.source import Source, locate

_HOME = {
    "fingerprint": ("fingerprint_file", "fingerprint_files"),
    "load": ("Base", "empty_model", "load_base", "load_config", "load_tokenizer"),
    "precision": ("choose_device", "choose_dtype"),
    "reference": ("ModelReference",),
    "sites": ("Hit", "Site", "find_sites", "hit_table", "matching_sites", "resolve_targets"),
    "source": ("Source", "locate"),
}

__all__ = [
    "Base",
    "Hit",
    "ModelReference",
    "Site",
    "Source",
    "choose_device",
    "choose_dtype",
    "empty_model",
    "find_sites",
    "fingerprint_file",
    "fingerprint_files",
    "hit_table",
    "load_base",
    "load_config",
    "load_tokenizer",
    "locate",
    "matching_sites",
    "resolve_targets",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"budwood.models.{module}"), name)
    raise AttributeError(f"module 'budwood.models' has no attribute {name!r}")
