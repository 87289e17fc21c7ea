"""`status.json`: what a run is doing, and whether the process that says so still lives. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from budwood import storage
from budwood.errors import BudwoodError, InterruptedRunError, StorageError

STATUS = "status.json"
BEAT_S = 3.0  # a running process refreshes its heartbeat this often
STALE_S = 60.0  # a heartbeat older than this is that of a dead process

State = Literal["running", "done", "failed", "interrupted"]


@dataclass(frozen=True)
class Status:
    """The content of status.json.

    Attributes:
        state: what the run does, or how it ended.
        exit_code: of the process, once it has ended.
        error: `BudwoodError.to_dict()`, if it ended with one.
        pid, host: the process that runs it.
        heartbeat: when that process last showed life, ISO 8601 in UTC.
        step, total_steps: optimiser steps taken and planned; None before training.
    """

    state: State
    exit_code: int | None = None
    error: dict[str, Any] | None = None
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    heartbeat: str = field(default_factory=lambda: _now().isoformat(timespec="seconds"))
    step: int | None = None
    total_steps: int | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the last heartbeat."""
        return (_now() - datetime.fromisoformat(self.heartbeat)).total_seconds()

    def ended(self, error: BaseException | None) -> Status:
        """Return the status of a run that ended well (None) or with `error`."""
        if error is None:
            return replace(self, state="done", exit_code=0, error=None)
        if isinstance(error, (InterruptedRunError, KeyboardInterrupt)):
            return replace(self, state="interrupted", exit_code=InterruptedRunError.exit_code, error=_describe(error))
        code = error.exit_code if isinstance(error, BudwoodError) else 1
        return replace(self, state="failed", exit_code=code, error=_describe(error))


def read_status(run: str | Path) -> dict[str, Any]:
    """Return the status of the run in a folder, as status.json holds it; empty if the folder holds no run.

    A run that says "running" while its process is dead, or has been silent for a minute, is "interrupted".

    Raises:
        StorageError: status.json is not what budwood writes.
    """
    status = load_status(Path(run))
    if status is None:
        return {}
    if status.state == "running" and _is_dead(status):
        status = replace(status, state="interrupted", exit_code=InterruptedRunError.exit_code)
    return asdict(status)


def load_status(run: Path) -> Status | None:
    """Return status.json as it stands, or None if there is none."""
    try:
        return Status(**storage.read_json(run / STATUS))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(
            f"{run / STATUS} cannot be read: {error}", action="remove the folder, or choose another one"
        ) from error


class Heartbeat:
    """Keeps status.json fresh from a thread of its own, so that a step that takes minutes is not taken for dead."""

    def __init__(self, run: Path) -> None:
        self._run, self._status = run, Status("running")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="budwood-heartbeat", daemon=True)

    def start(self) -> None:
        """Write status.json for the first time, and go on.

        Raises:
            StorageError: it cannot be written.
        """
        self._write()
        self._thread.start()

    def progress(self, step: int, total_steps: int) -> None:
        """Say how far the run is; written with the next beat."""
        self._status = replace(self._status, step=step, total_steps=total_steps)

    def end(self, error: BaseException | None) -> None:
        """Write how the run ended. Where the disk fails too, the old status stays and soon counts as interrupted."""
        self._stop.set()
        self._thread.join()
        self._status = self._status.ended(error)
        with contextlib.suppress(StorageError):
            self._write()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            with contextlib.suppress(StorageError):  # training itself will meet the failing disk, and report it
                self._write()

    def _write(self) -> None:
        now = _now().isoformat(timespec="seconds")
        storage.write_json(self._run / STATUS, asdict(replace(self._status, heartbeat=now)))


def _is_dead(status: Status) -> bool:
    return status.age_s > STALE_S or (status.host == socket.gethostname() and not _lives(status.pid))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _describe(error: BaseException) -> dict[str, Any]:
    if isinstance(error, BudwoodError):
        return error.to_dict()
    return {"type": type(error).__name__, "got": str(error), "wanted": "", "action": ""}


def _now() -> datetime:
    return datetime.now(UTC)
