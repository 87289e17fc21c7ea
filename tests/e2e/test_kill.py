"""A run that is killed at any moment loses nothing: resumed, it ends with the same bits as one that was left alone."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import budwood
from tests.e2e.conftest import QUICK

MOMENTS = 20
WRITES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unverified")]


def in_a_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process; return its exit status, negative for the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def watch(folder: Path, on_write: Callable[[], None]) -> None:
    """Call `on_write` before each operation of the main thread on a file of `folder`. It cannot be undone.

    The heartbeat's thread is left out: how often it writes depends on the clock.
    """
    prefix = str(folder)

    def hook(event: str, arguments: tuple) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and event in WRITES and arguments and str(arguments[0]).startswith(prefix):
            on_write()

    sys.addaudithook(hook)


def adapt(base: str, rows: Path, out: Path, resume: bool = False) -> None:
    budwood.adapt(base, budwood.Examples(rows), out=out, seed=0, overrides=QUICK, progress=False, resume=resume)


def count_moments(base: str, rows: Path, out: Path) -> int:
    """Return how many file operations a whole run makes."""
    log = out.with_suffix(".log")

    def work() -> None:
        with open(log, "ab", buffering=0) as file:
            watch(out, lambda: file.write(b"."))
            adapt(base, rows, out)

    assert in_a_child(work) == 0
    return log.stat().st_size


def test_killed_at_twenty_moments(base, rows, tmp_path):
    total = count_moments(base, rows, tmp_path / "whole")
    wanted = (tmp_path / "whole" / "adapter" / "adapter_model.safetensors").read_bytes()
    assert total > 3 * MOMENTS
    for moment in range(1, total + 1, max(1, total // MOMENTS)):
        out = tmp_path / f"killed-{moment}"
        left = [moment]

        def strike(left=left) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def doomed(out=out, strike=strike) -> None:
            watch(out, strike)
            adapt(base, rows, out)

        assert in_a_child(doomed) == -signal.SIGKILL, moment
        if (out / "status.json").exists():
            assert budwood_state(out) != "running", moment
        begun = (out / "status.json").exists()
        assert in_a_child(lambda out=out, begun=begun: adapt(base, rows, out, resume=begun)) == 0, moment
        assert (out / "adapter" / "adapter_model.safetensors").read_bytes() == wanted, moment
        assert not list(out.glob(".partial-*")), moment


def budwood_state(run: Path) -> str:
    from budwood.training.folder import read_status

    return str(read_status(run)["state"])
