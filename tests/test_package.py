"""The public surface and what importing costs."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import budwood

PUBLIC = [
    "BudwoodError",
    "Documents",
    "Examples",
    "GiftConfig",
    "Instruction",
    "Repair",
    "Run",
    "adapt",
    "open_run",
    "prepare",
]


def test_public_names_are_these_even_after_every_submodule_is_imported():
    for module in pkgutil.walk_packages(budwood.__path__, "budwood."):
        if not module.name.endswith("_probe"):  # programs, run by path in a process of their own
            importlib.import_module(module.name)
    assert budwood.__all__ == PUBLIC == sorted(PUBLIC)
    submodules = {module.name for module in pkgutil.iter_modules(budwood.__path__)}
    assert not submodules & set(PUBLIC)
    for name in PUBLIC:
        assert getattr(budwood, name).__name__ == name


def test_import_loads_nothing_heavy():
    code = "import sys, budwood; print([m for m in ('torch', 'transformers', 'peft', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'adpat'"):
        budwood.adpat  # noqa: B018
