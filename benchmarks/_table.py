"""What the tables of this folder share: a command that can be stopped and gone on with, and its file of results.

A table is computed cell by cell; each finished cell is one line of JSON in a file that is only ever appended to, and a
cell whose key is there is not computed again. `instructions` and `idp` are such tables. Others, `lama_ckl` among them,
have a command of their own still and take `append` and `read` by way of `instructions.results`: `run_command`,
`add_arguments`, `fill`, `machine`, `digest` and `say` are for them, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from budwood.errors import BudwoodError, InterruptedRunError
from budwood.storage import guarded
from budwood.training.environment import describe_environment

Line = dict[str, Any]
Todo = Iterable[tuple[str, Callable[[], Line]]]
RESULTS = Path(__file__).parent / "results"


def run_command(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    run: Callable[[argparse.Namespace], None],
    report: Callable[[Iterable[Line]], str],
    *,
    kept: str,
) -> int:
    """Compute what is missing unless only the report is asked for, print the report, and return the exit code.

    Args:
        parser: one with the arguments of `add_arguments`.
        run: fills the file of results.
        report: makes text of the lines.
        kept: what to say of an interrupted run.
    """
    args = parser.parse_args(arguments)
    try:
        if not args.report:
            run(args)
        print(report(read(args.results).values()))
    except BudwoodError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        say(f"interrupted; {kept}")
        return InterruptedRunError.exit_code
    return 0


def add_arguments(parser: argparse.ArgumentParser, *, results: str, seeds: int, seeds_help: str | None = None) -> None:
    """Add the arguments that every table has.

    Args:
        results: the name of its file in `results/`.
        seeds: how many, where nothing is said.
    """
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the base; auto: bf16 where the device multiplies in it")
    parser.add_argument("--seeds", type=int, default=seeds, help=seeds_help)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after so many minutes")
    parser.add_argument("--results", type=Path, default=RESULTS / results)
    parser.add_argument("--report", action="store_true", help="only print the tables of the results")


def fill(
    path: Path,
    todo: Todo,
    *,
    minutes: float,
    summary: Callable[[Line], str],
    cells: int = sys.maxsize,
) -> None:
    """Compute the cells that are not in the file, each as it comes.

    Args:
        path: the file of results; other processes may append to it meanwhile.
        todo: the key of each cell, and what computes its line.
        minutes: start no cell after so many.
        summary: what to say of a finished cell.
        cells: compute at most so many.
    """
    began, count = time.monotonic(), 0
    for key, compute in todo:
        if key in read(path):
            continue
        if count >= cells or time.monotonic() - began > 60 * minutes:
            say("stopped here; the same command goes on with the next cell")
            return
        line = compute()
        append(path, line)
        count += 1
        say(summary(line))


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append one line and see it onto the disk. What a killed process left of a line stays a line of its own."""
    with guarded(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if file.tell() and _last_byte(file) != b"\n":
                file.write(b"\n")
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    return bytes(file.read(1))


def read(path: Path) -> dict[str, Line]:
    """Return the lines by key; of two with the same key the later. A torn line is passed over with a message."""
    found: dict[str, Line] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else [], start=1):
        try:
            line = json.loads(text)
            found[line["key"]] = line
        except (ValueError, KeyError, TypeError):
            say(f"{path}, line {number}: not a whole cell, passed over")
    return found


def digest(value: Any) -> str:
    """Return the SHA-256 of a value of JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def machine(*names: str, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return some of the facts of the environment by name, and versions of packages."""
    facts = describe_environment()
    return {name: facts[name] for name in names} | {name: facts["packages"].get(name) for name in packages}


def say(text: str) -> None:
    """Tell progress, apart from the tables on standard output."""
    print(text, file=sys.stderr, flush=True)
