"""How far an evaluation is, on standard error: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TaskID

from budwood.evals._running import Progress

LINE_S = 10.0


@contextlib.contextmanager
def progress_shown(enabled: bool) -> Iterator[Progress | None]:
    """Yield what `evaluate_rows` and `with_base` take as `progress`; None where nothing is to be shown."""
    if not enabled:
        yield None
    elif sys.stderr.isatty():
        with Bar(console=Console(stderr=True), redirect_stdout=False, transient=True) as bar:
            tasks: dict[str, TaskID] = {}

            def show(what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bar.add_task(what, total=total)
                bar.update(tasks[what], completed=done)

            yield show
    else:
        last = [time.monotonic()]

        def write(what: str, done: int, total: int) -> None:
            if time.monotonic() - last[0] >= LINE_S:
                last[0] = time.monotonic()
                print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)

        yield write
