"""budwood: adapt a pretrained Transformer with little data and little compute.

What do you have, and which small set of parameters do you get from it? The public names are below; each is loaded
when it is first used, so that `import budwood` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from budwood._adapt import adapt
    from budwood._prepare import prepare
    from budwood.errors import BudwoodError
    from budwood.evidence import Documents, Examples, Instruction, Repair
    from budwood.methods.gift.config import GiftConfig
    from budwood.run import Run, open_run

__version__ = "0.1.0"

__all__ = [
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

_HOME = {
    "BudwoodError": "budwood.errors",
    "Documents": "budwood.evidence",
    "Examples": "budwood.evidence",
    "GiftConfig": "budwood.methods.gift.config",
    "Instruction": "budwood.evidence",
    "Repair": "budwood.evidence",
    "Run": "budwood.run",
    "adapt": "budwood._adapt",
    "open_run": "budwood.run",
    "prepare": "budwood._prepare",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'budwood' has no attribute {name!r}")
    if name.endswith("Config"):  # a PEFT configuration is of use only once PEFT knows its tuner
        importlib.import_module("budwood.peft").register()
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
