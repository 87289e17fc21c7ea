"""The folder of a run: its layout, who may write to it, and its small files.

    RUN/  status.json  env.json  events.jsonl  metrics.json  checkpoints/  adapter/

One process at a time writes to a run: it holds the lock on `RUN/.lock`, which the system releases however the process
ends, and keeps the heartbeat of status.json. Imports no torch until a run is opened.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from budwood import storage
from budwood.errors import StorageError, UsageError
from budwood.training.environment import describe_environment
from budwood.training.events import append_event, read_events, truncate_events
from budwood.training.status import STALE_S, STATUS, Heartbeat, Status, load_status, read_status

METRICS = "metrics.json"
__all__ = ["RunFolder", "read_events", "read_metrics", "read_status"]


class RunFolder:
    """A run folder that this process writes to while it is open.

    Args:
        path: the folder; made when the run is opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._heartbeat: Heartbeat | None = None

    @property
    def adapter(self) -> Path:
        """Where the finished adapter goes."""
        return self.path / "adapter"

    @property
    def checkpoints(self) -> Path:
        """Where training keeps what it needs to go on."""
        return self.path / "checkpoints"

    @property
    def resume_command(self) -> str:
        """The command that goes on with the run."""
        return shlex.join(["budwood", "adapt", "--resume", "-o", str(self.path)])

    def admit(self, *, resume: bool = False, replace: bool = False) -> None:
        """Refuse what `open` would refuse, and touch nothing.

        Raises:
            UsageError: as `open`.
        """
        self._admit(load_status(self.path), resume, replace)

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: str | Path, *, resume: bool = False, replace: bool = False) -> Iterator[RunFolder]:
        """Make a run, or go on with one, and hold it until the block ends; status.json then says how it ended.

        A run that failed before its first step holds nothing worth keeping: a new one takes its place.

        Args:
            path: a new or empty folder, or with `resume` or `replace` the folder of a run.
            resume: go on with the run that is there.
            replace: remove the run that is there first.

        Raises:
            UsageError: the folder is in use by another process, holds something else than a run, holds a run and
                neither argument is given, or holds none to resume.
        """
        folder = cls(path)
        with folder.session(resume=resume, replace=replace):
            yield folder

    @contextlib.contextmanager
    def session(self, *, resume: bool = False, replace: bool = False) -> Iterator[None]:
        """As `open`, for a folder object at hand; does nothing if it is open already."""
        if self._heartbeat is not None:
            yield
            return
        self.admit(resume=resume, replace=replace)
        with self._locked():
            self.admit(resume=resume, replace=replace)  # again: another process may have come first
            if not resume:
                self._clear()
            storage.sweep(self.path)
            storage.sweep(self.checkpoints)
            with self._alive():
                yield

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        heartbeat = Heartbeat(self.path)
        heartbeat.start()
        self._heartbeat = heartbeat
        try:
            storage.write_json(self.path / "env.json", describe_environment())
            yield
        except BaseException as error:
            heartbeat.end(error)
            raise
        else:
            heartbeat.end(None)
        finally:
            self._heartbeat = None

    def progress(self, step: int, total_steps: int) -> None:
        """Let status.json say how far training is."""
        if self._heartbeat is not None:
            self._heartbeat.progress(step, total_steps)

    def append_event(self, event: Mapping[str, Any]) -> None:
        """Append one line to events.jsonl."""
        append_event(self.path, event)

    def truncate_events(self, step: int | None) -> None:
        """Forget the events after `step`, or all of them for None."""
        truncate_events(self.path, step)

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add to metrics.json; keys that are there get their new value."""
        storage.write_json(self.path / METRICS, read_metrics(self.path) | dict(metrics))

    def _admit(self, status: Status | None, resume: bool, replace: bool) -> None:
        """Refuse to open the folder where that would harm what is in it."""
        if status is None:
            self._admit_new(resume)
        elif status.state == "running" and status.host != socket.gethostname() and status.age_s < STALE_S:
            raise self._in_use(status)
        elif not (resume or replace or self._never_began(status)):
            raise self._occupied()

    def _never_began(self, status: Status) -> bool:
        """Whether the run failed before its first step. One that was resumed has results of an earlier session."""
        results = self.checkpoints.exists() or self.adapter.exists()
        return status.state == "failed" and not status.step and not results

    def _admit_new(self, resume: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path} is a file", action="choose another place for the run")
        if self.path.exists() and any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise UsageError(
                f"{self.path} holds files but no run", wanted="a new or an empty folder", action="choose another place"
            )
        if resume:
            raise UsageError(f"there is no run to resume in {self.path}", action="start it without --resume")

    def _occupied(self) -> UsageError:
        state = read_status(self.path)["state"]
        if state == "done":
            return UsageError(f"{self.path} holds a finished run", action="choose another place, or use --force")
        going_on = "wait for it" if state == "running" else f"`{self.resume_command}`, begin anew with --force"
        return UsageError(f"{self.path} holds a run that is {state}", action=f"{going_on}, or choose another place")

    def _in_use(self, status: Status | None) -> UsageError:
        by = f" (process {status.pid} on {status.host})" if status else ""
        return UsageError(f"another process is writing to {self.path}{by}", action="wait for it, or stop it first")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        storage.make_folder(self.path)
        lock = FileLock(self.path / ".lock", blocking=False)
        try:
            with storage.guarded(self.path):
                lock.acquire()
        except Timeout:
            raise self._in_use(load_status(self.path)) from None
        except NotImplementedError:
            raise StorageError(
                f"the file system of {self.path} has no locks", action="choose a place on another file system"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _clear(self) -> None:
        """Remove the run; status.json goes last, so that a folder half removed is still known as a run."""
        status = self.path / STATUS
        with storage.guarded(self.path):
            for entry in self.path.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry)
                elif entry.name not in (STATUS, ".lock"):
                    entry.unlink()
            status.unlink(missing_ok=True)


def read_metrics(run: str | Path) -> dict[str, Any]:
    """Return the content of metrics.json; empty if there is none.

    Raises:
        StorageError: it is not what budwood writes.
    """
    path = Path(run) / METRICS
    try:
        return dict(storage.read_json(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(f"{path} cannot be read: {error}", action="remove the file") from error
