"""`adapt` from the outside: a request becomes a recipe and a place, and what cannot be is refused at once.

Imports no torch: a mistake costs the user a second. What happens then is in `_make`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budwood._request import Request
from budwood.errors import UsageError
from budwood.evidence import Evidence
from budwood.recipe import Recipe
from budwood.training.folder import RunFolder

if TYPE_CHECKING:
    from budwood.run import Run


def adapt(
    model: str | None = None,
    evidence: Evidence | None = None,
    *,
    method: str | None = None,
    tuner: str | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    recipe: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Run:
    """Make an adapter for `model` from what the user has, verify it, and return the run that holds it.

    Args:
        model: a model reference: `smollm2`, `org/name[@revision]`, a folder, `file.gguf`, perhaps with `+nf4`. None
            leaves it to the recipe.
        evidence: what the user has; its kind decides the default method. None leaves it to the recipe.
        method: how evidence becomes an adapter.
        tuner: where the new parameters live; the method decides unless given.
        out: the run folder; by default a new one under `runs/`.
        seed: decides the adapter's start, the order of rows and the split.
        recipe: a YAML file or the name of a preset, under the other arguments.
        overrides: single settings by their dotted name, such as `{"training.epochs": 2}`.
        resume: go on with the interrupted run in `out`, by its own recipe; other arguments must agree with that.
        force: replace a finished run in `out`.
        progress: show a progress bar on standard error.

    Raises:
        BudwoodError: anything that went wrong, with what to do; `exit_code` tells the kind.
    """
    request = Request(model, evidence, method, tuner, seed, recipe, overrides)
    return carry_out(request, out=out, resume=resume, force=force, progress=progress)


def carry_out(
    request: Request,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Run:
    """Do what `adapt` does, for a request at hand."""
    resolved, place = _settled(request, out, resume, force)
    from budwood._make import make

    return make(resolved, place, resume=resume, replace=force, progress=progress)


def preview(
    request: Request,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Return what `carry_out` would do with the same arguments, and fail where it would. Writes nothing.

    Returns:
        "out", "recipe", "trainable_params", "rows", "steps", "warmup_steps" and "comparison".
    """
    resolved, place = _settled(request, out, resume, force)
    from budwood._make import outline

    return {"out": str(place), **outline(resolved, progress=progress)}


def _settled(request: Request, out: str | Path | None, resume: bool, force: bool) -> tuple[Recipe, Path]:
    """Return the recipe and the folder of the run; refuse what cannot be, before anything heavy is loaded."""
    if not resume:
        resolved = request.resolve()
        place = Path(out) if out is not None else fresh_place(resolved)
        RunFolder(place).admit(replace=force)
        return resolved, place
    if out is None or force:
        raise UsageError(
            "--resume together with --force" if force else "--resume without the run to go on with",
            wanted="-o RUN beside --resume" if not force else "one of the two",
            action="budwood adapt --resume -o RUN",
        )
    RunFolder(out).admit(resume=True)
    return request.resumed(Path(out)), Path(out)


def fresh_place(recipe: Recipe) -> Path:
    """Return a folder under `runs/` that does not exist yet."""
    stem = f"{recipe.method}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(place for name in names if not (place := Path("runs") / name).exists())
