"""How far training is, on standard error: a bar on a terminal, a line every few seconds elsewhere. Never on stdout."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_S = 10.0  # seconds between lines where there is no terminal

Show = Callable[[Mapping[str, Any]], None]  # takes the event of a step


@contextlib.contextmanager
def progress_display(enabled: bool, total_steps: int, first_step: int) -> Iterator[Show]:
    """Yield a function that shows the event of a step.

    Args:
        enabled: whether anything is shown at all.
        total_steps: steps of the run.
        first_step: steps that an earlier session of the run has taken.
    """
    if not enabled:
        yield lambda event: None
    elif sys.stderr.isatty():
        with _bar(total_steps, first_step) as show:
            yield show
    else:
        yield _Lines(sys.stderr, total_steps, first_step)


def describe(event: Mapping[str, Any]) -> str:
    """Return the figures of an event in words."""
    figures = [("loss", "loss", ".4f"), ("eval_loss", "eval", ".4f"), ("tokens_per_s", "tok/s", ",.0f")]
    return "  ".join(f"{name} {event[key]:{form}}" for key, name, form in figures if event.get(key) is not None)


@contextlib.contextmanager
def _bar(total_steps: int, first_step: int) -> Iterator[Show]:
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    # rich would send what others print on stdout to stderr while the bar lives.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as progress:
        task = progress.add_task("", total=total_steps, completed=first_step)

        def show(event: Mapping[str, Any]) -> None:
            progress.update(task, completed=event["step"], description=describe(event))

        yield show


class _Lines:
    """Writes a line for a step if the last line is some seconds old, and for every evaluation and the last step."""

    def __init__(self, stream: TextIO, total_steps: int, first_step: int) -> None:
        self._stream, self._total, self._first = stream, total_steps, first_step
        self._start = self._last = time.monotonic()

    def __call__(self, event: Mapping[str, Any]) -> None:
        now, step = time.monotonic(), event["step"]
        if now - self._last < LINE_S and "eval_loss" not in event and step < self._total:
            return
        self._last = now
        left = (now - self._start) / max(1, step - self._first) * (self._total - step)
        ending = f"  {left:,.0f} s left" if self._first < step < self._total else ""
        self._stream.write(f"step {step}/{self._total}  {describe(event)}{ending}\n")
        self._stream.flush()
