"""Finds methods and tuners by listing the folder `budwood/methods`; there is no other list.

A module there declares `METHODS` and `TUNERS`, tuples that may be empty, and perhaps `LEFT_OUT`: names that users may
look for and do not find here, each with the reason. Importing it loads neither torch nor PEFT.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from budwood.errors import NotSupportedError, UsageError, nearest
from budwood.tuning.protocol import Method, Tuner

T = TypeVar("T", Method, Tuner)
PACKAGE = "budwood.methods"


@cache
def _modules() -> tuple[ModuleType, ...]:
    package = importlib.import_module(PACKAGE)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(importlib.import_module(f"{PACKAGE}.{name}") for name in names)


def methods() -> dict[str, Method]:
    """Return every method by name."""
    return {method.name: method for module in _modules() for method in module.METHODS}


def tuners() -> dict[str, Tuner]:
    """Return every tuner by name."""
    return {tuner.name: tuner for module in _modules() for tuner in module.TUNERS}


def left_out() -> dict[str, str]:
    """Return the names that are left out on purpose, each with the reason."""
    return {name: reason for module in _modules() for name, reason in vars(module).get("LEFT_OUT", {}).items()}


def own_tuners() -> Iterable[Tuner]:
    """Return the tuners that PEFT has to be told about."""
    return (tuner for tuner in tuners().values() if tuner.load_classes is not None)


def find_method(name: str) -> Method:
    """Return the method called `name`, or say which there are.

    Raises:
        UsageError: there is none.
        NotSupportedError: it is left out on purpose; the reason is said.
    """
    return _find(name, methods(), "method")


def find_tuner(name: str) -> Tuner:
    """Return the tuner called `name`, or say which there are; the errors are those of `find_method`."""
    return _find(name, tuners(), "tuner")


def default_method(evidence: str) -> Method:
    """Return the method for a kind of evidence: the one declared as its default.

    Raises:
        NotSupportedError: no method of this version takes that evidence.
    """
    for method in methods().values():
        if method.evidence == evidence and method.default:
            return method
    known = sorted({method.evidence for method in methods().values()})
    raise NotSupportedError(
        f"no method of this version takes {evidence!r} as evidence",
        wanted=f"one of: {', '.join(known)}",
        action="see `budwood methods` for what there is",
    )


def method_of(folder: Path) -> Method | None:
    """Return the method that published `folder` in a form of its own, told by its mark; None for a PEFT adapter."""
    return next((one for one in methods().values() if one.mark and (folder / one.mark).is_file()), None)


def _find(name: str, known: dict[str, T], what: str) -> T:
    if name in left_out():
        raise NotSupportedError(f"{name} is left out: {left_out()[name]}", action=nearest(name, known))
    if name not in known:
        raise UsageError(f"there is no {what} called {name!r}", action=nearest(name, known))
    return known[name]
