"""How far training is, on standard error: a bar on a terminal, a line every few seconds elsewhere. Never on stdout."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_S = 10.0  # seconds between lines where there is no terminal

Show = Callable[[Mapping[str, Any]], None]  # takes the event of a step


@dataclass(frozen=True)
class Part:
    """One of several trainings that make up a run.

    Attributes:
        name: what it trains, in words.
        before: steps of the trainings before it.
        total: steps of all.
    """

    name: str
    before: int
    total: int


@contextlib.contextmanager
def progress_display(enabled: bool, total_steps: int, first_step: int, part: Part | None = None) -> Iterator[Show]:
    """Yield a function that shows the event of a step.

    Args:
        enabled: whether anything is shown at all.
        total_steps: steps of this training.
        first_step: steps that an earlier session of it has taken.
        part: where this is one of several trainings: which; the time left is then that of all that remain.
    """
    whole = part or Part("", 0, total_steps)
    if not enabled:
        yield lambda event: None
    elif sys.stderr.isatty():
        with _bar(whole, first_step) as show:
            yield show
    else:
        yield _Lines(sys.stderr, whole, total_steps, first_step)


def describe(event: Mapping[str, Any]) -> str:
    """Return the figures of an event in words."""
    figures = [("loss", "loss", ".4f"), ("eval_loss", "eval", ".4f"), ("tokens_per_s", "tok/s", ",.0f")]
    return "  ".join(f"{name} {event[key]:{form}}" for key, name, form in figures if event.get(key) is not None)


@contextlib.contextmanager
def _bar(part: Part, first_step: int) -> Iterator[Show]:
    columns = (
        TextColumn(part.name or "training", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    # rich would send what others print on stdout to stderr while the bar lives.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as progress:
        task = progress.add_task("", total=part.total, completed=part.before + first_step)

        def show(event: Mapping[str, Any]) -> None:
            progress.update(task, completed=part.before + event["step"], description=describe(event))

        yield show


class _Lines:
    """Writes a line for a step if the last line is some seconds old, and for every evaluation and the last step."""

    def __init__(self, stream: TextIO, part: Part, total_steps: int, first_step: int) -> None:
        self._stream, self._part, self._total, self._first = stream, part, total_steps, first_step
        self._start = self._last = time.monotonic()

    def __call__(self, event: Mapping[str, Any]) -> None:
        now, step = time.monotonic(), event["step"]
        if now - self._last < LINE_S and "eval_loss" not in event and step < self._total:
            return
        self._last = now
        remaining = self._part.total - self._part.before - step
        left = (now - self._start) / max(1, step - self._first) * remaining
        ending = f"  {left:,.0f} s left" + (" in all" if self._part.name else "") if remaining else ""
        ending = ending if step > self._first else ""
        name = f"{self._part.name}: " if self._part.name else ""
        self._stream.write(f"{name}step {step}/{self._total}  {describe(event)}{ending}\n")
        self._stream.flush()
