"""Which method suits what the user has, the command for it, and (in `_estimate`) what it would take and give.

Imports no torch: a mistake costs the user a second.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from budwood import _adapt
from budwood import recipe as recipes
from budwood._request import Request
from budwood.evidence import Instruction
from budwood.recipe import Recipe
from budwood.tuning.registry import find_method, find_tuner, methods

# Kind of evidence -> the method that this project means to have for it, and what to do until it is there.
INTENDED = {
    "examples": ("gift", "it learns from labelled rows", ""),
    "documents": ("taalm", "it learns new facts from text", "write questions and answers about the documents as rows"),
    "instruction": ("tagi", "it makes an adapter from a task in words", "write some rows that follow the instruction"),
    "repair": ("idp", "it wins back what compression lost", "write rows of the task on which the model got worse"),
}


def plan(request: Request, *, out: str | Path | None = None) -> dict[str, Any]:
    """Return what `adapt` with the same arguments would take and give. Reads no weights, writes nothing.

    Args:
        request: as for `adapt`; without evidence, what depends on rows is None, and without a method the one for the
            evidence is recommended.
        out: the run folder.

    Returns:
        "method" (name, whether this version has it, why), "command" and "model"; for a method that is built also
        "memory_mib" (with the batch it is for, and the formula), "steps", "tokens", "seconds", "exports" and what
        `_adapt.preview` returns.
    """
    evidence, chosen = request.evidence, request.method or request.recipe
    if evidence is not None and request.model and not chosen and not _is_built(evidence.kind):
        from budwood._estimate import base_facts
        from budwood.models import locate

        return {"method": _missing(evidence.kind), "command": None, "model": base_facts(locate(request.model))}
    if request.names_rows():
        found = _adapt.preview(request, out=out, force=True)  # a plan replaces nothing
        resolved = recipes.build(found["recipe"])
    else:
        found, resolved = {}, _without_evidence(request)
    from budwood._estimate import figures

    return {
        "method": _recommendation(resolved, request.method),
        "command": shlex.join(_words(request, resolved, found.get("out"))),
        **figures(resolved, found),
    }


def _is_built(kind: str) -> bool:
    return any(method.evidence == kind and method.default for method in methods().values())


def _missing(kind: str) -> dict[str, Any]:
    name, why, instead = INTENDED[kind]
    return {
        "name": name,
        "built": False,
        "why": f"for {kind} it is {name}: {why}; this version does not have it yet",
        "instead": f"{instead}, and use --examples",
    }


def _recommendation(resolved: Recipe, asked: str | None) -> dict[str, Any]:
    method, tuner = find_method(resolved.method), find_tuner(resolved.tuner_name)
    kind = resolved.evidence.kind
    why = "asked for" if asked else f"the default for {kind}" if method.default else "named by the recipe"
    return {
        "name": method.name,
        "built": True,
        "why": f"{why}: {method.title}",
        "tuner": tuner.name,
        "learns": tuner.learns,
    }


def _without_evidence(request: Request) -> Recipe:
    """Return the recipe where no rows are named; they are examples unless the method takes another kind."""
    name = request.values().get("method")
    kind = find_method(str(name)).evidence if name else "examples"
    return recipes.resolve(request.recipe, {"evidence": {"kind": kind}}, *request.layers())


def _words(request: Request, recipe: Recipe, out: str | None) -> list[str]:
    """Return the command that does what was planned."""
    words = ["budwood", "adapt", *([request.model] if request.model else [])]
    words += _evidence_words(request, recipe)
    words += ["--method", recipe.method] if request.method or not request.recipe else []
    for name in ("tuner", "recipe", "seed"):
        value = getattr(request, name)
        words += [f"--{name}", str(value)] if value is not None else []
    for name, value in (request.overrides or {}).items():
        words += ["--set", f"{name}={json.dumps(value, ensure_ascii=False)}"]
    return [*words, "-o", out or "RUN"]


def _evidence_words(request: Request, recipe: Recipe) -> list[str]:
    evidence, settings = request.evidence, recipe.evidence
    if evidence is None:
        return [] if settings.paths or settings.text else [f"--{settings.kind}", "FILE"]
    if isinstance(evidence, Instruction):
        pairs = [word for pair in evidence.examples for word in ("--example", " => ".join(pair))]
        return ["--instruction", evidence.text, *pairs]
    return [word for path in evidence.files() for word in (f"--{evidence.kind}", str(path))]
