"""`prepare` from the outside: a base, a method and a corpus become a prior that serves many adapters of that base.

Imports no torch until the request is sound.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budwood._layers import nested
from budwood.data.files import require_readable
from budwood.errors import ConfigError, InterruptedRunError, NotSupportedError
from budwood.training.folder import RunFolder, read_metrics
from budwood.tuning.registry import find_method, methods

if TYPE_CHECKING:
    from budwood.tuning.prepared import Preparer, Ready

PathLike = str | Path


@dataclass(frozen=True)
class Prior:
    """A prepared prior: its folder, and the figures of its training."""

    path: Path
    metrics: dict[str, Any]


@dataclass(frozen=True)
class PriorRequest:
    """The arguments of `prepare` that decide what is computed; its docstring says what each means."""

    model: str
    method: str
    corpus: tuple[Path, ...]
    seed: int = 0
    overrides: Mapping[str, Any] = field(default_factory=dict, hash=False)
    device: str = "auto"
    base_run: Path | None = None

    def preparer(self) -> Preparer:
        """Return how the method makes its prior.

        Raises:
            UsageError: there is no such method.
            NotSupportedError: it needs no prior.
            DataError: a file of the corpus does not exist.
        """
        method = find_method(self.method)
        if method.load_preparer is None:
            having = [one.name for one in methods().values() if one.load_preparer is not None]
            raise NotSupportedError(
                f"the method {method.name} needs no prior",
                wanted=f"a method that does: {', '.join(having)}",
                action=f"`budwood adapt MODEL --method {method.name} …` works at once",
            )
        for path in self.corpus:
            require_readable(path)
        return method.load_preparer()

    def read(self) -> Ready:
        """Read the corpus; the errors are those of `prepare`."""
        preparer = self.preparer()
        from pydantic import ValidationError

        from budwood import peft
        from budwood.models import locate
        from budwood.run import open_run
        from budwood.tuning.lesson import AdapterStart
        from budwood.tuning.prepared import Preparation

        peft.register()
        try:
            settings = preparer.settings.model_validate(nested(self.overrides))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            known = ", ".join(preparer.settings.model_fields)
            raise ConfigError(f"{key}: {first['msg']}", wanted=f"settings under: {known}") from None
        source, start = locate(self.model), None
        if self.base_run is not None:
            run = open_run(self.base_run, base=self.model)
            start = AdapterStart(run.path, run.adapter)
        return preparer.read(Preparation(source, self.corpus, settings, self.device, self.seed, start))

    def command(self, out: Path) -> str:
        """Return the command that goes on with this preparation in `out`."""
        corpus = [word for path in self.corpus for word in ("--corpus", str(path))]
        chosen = [word for name, value in self.overrides.items() for word in ("--set", f"{name}={value}")]
        start = ["--base-run", str(self.base_run)] if self.base_run else []
        words = ["budwood", "prepare", self.model, self.method, *corpus, *start, *chosen, "--seed", str(self.seed)]
        return shlex.join([*words, "-o", str(out), "--resume"])


def prepare(
    model: str,
    method: str,
    *,
    corpus: PathLike | tuple[PathLike, ...],
    out: PathLike,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    device: str = "auto",
    base_run: PathLike | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Prior:
    """Make what a method needs once for a base, and write it into the folder `out`.

    Args:
        model: a model reference, as in `adapt`.
        method: such as "taalm", whose prior is a scorer of tokens.
        corpus: files of rows that the prior is trained on.
        out: the folder of the prior; `adapt(…, overrides={"learner.prior": out})` uses it.
        seed: decides the prior's start, the order of rows, and what is held out.
        overrides: settings of the preparation by their dotted name, such as `{"stage.steps": 100}`.
        device: where to compute.
        base_run: a run on this base: the prior is made for adapters that start from its own.
        resume: go on with an interrupted preparation in `out`; what was done is found again.
        force: replace what is in `out`.
        progress: show progress on standard error.

    Raises:
        BudwoodError: anything that went wrong, with what to do; a prior that would be of no use is a `TrainingError`.
    """
    files = corpus if isinstance(corpus, tuple) else (corpus,)
    start = None if base_run is None else Path(base_run)
    request = PriorRequest(model, method, tuple(map(Path, files)), seed, overrides or {}, device, start)
    return make_prior(request, Path(out), resume=resume, force=force, progress=progress)


def make_prior(
    request: PriorRequest, out: Path, *, resume: bool = False, force: bool = False, progress: bool = True
) -> Prior:
    """Do what `prepare` does, for a request at hand."""
    start, folder = time.monotonic(), RunFolder(out)
    folder.admit(resume=resume, replace=force)
    ready = request.read()
    with _resumable(request, out), folder.session(resume=resume, replace=force):
        metrics = ready.make(folder, progress=progress)
        folder.write_metrics(metrics | {"wall_s": round(time.monotonic() - start, 1)})
    return Prior(out, read_metrics(out))


def outline_prior(request: PriorRequest, out: Path, *, resume: bool = False, force: bool = False) -> dict[str, Any]:
    """Return what `make_prior` would do with the same arguments, and fail where it would. Writes nothing."""
    RunFolder(out).admit(resume=resume, replace=force)
    return {"out": str(out), **request.read().outline()}


@contextlib.contextmanager
def _resumable(request: PriorRequest, out: Path) -> Iterator[None]:
    """Let every interruption say how to go on."""
    try:
        yield
    except (KeyboardInterrupt, InterruptedRunError) as error:
        raise InterruptedRunError("interrupted", action=f"go on with `{request.command(out)}`") from error
