"""Checkpoints of a run: `checkpoints/step-000100/` to go on from, and `checkpoints/best/`, the best evaluated adapter.

    step-000100/  adapter.safetensors  all trainable tensors of the model, by parameter name
                  state.pt             optimiser, learning rates, generators of each process
                  trainer_state.json   what transformers.Trainer counts (epoch, step: the position in the data)
                  ledger.json          what budwood counts, and the plan of the run
    best/         adapter.safetensors  best.json: its step and evaluation loss

Each folder is written under a temporary name and renamed, and the folders it replaces go last, so a process that is
killed at any moment leaves whole ones only. The rename of a step comes before that of a new best: `best/` is then
either what the latest checkpoint says, or older and to be made from that very checkpoint (`settle`).

The tensors are stored by parameter name and not as PEFT's state dict, which holds what inference needs: for some
tuners (p-tuning, prefix tuning with a projection) that is less than training needs. The frozen base is never stored.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from budwood import storage
from budwood.errors import AdapterError, StorageError
from budwood.training.ledger import Ledger

TENSORS = "adapter.safetensors"
STATE = "state.pt"
TRAINER = "trainer_state.json"
LEDGER = "ledger.json"
BEST = "best.json"


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had not stopped.

    Attributes:
        tensors: the trainable tensors by parameter name.
        optimizer: state of the optimiser.
        schedule: state of the learning-rate schedule.
        generators: state of the random generators of each process.
        trainer: what transformers' `TrainerState` writes, JSON.
        ledger: what has been done.
        plan: `Plan.identity()`.
    """

    tensors: dict[str, Tensor]
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    generators: list[dict[str, Any]]
    trainer: str
    ledger: Ledger
    plan: dict[str, Any]


class CheckpointStore:
    """The folder `checkpoints/` of a run; one process writes to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        """Return where the checkpoint of `step` lies."""
        return self.folder / f"step-{step:06d}"

    def latest(self) -> int | None:
        """Return the step of the newest checkpoint, or None."""
        return max(self._steps(), default=None)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then `settle` the folder."""
        ledger = checkpoint.ledger
        with storage.new_folder(self.path(ledger.step), replace=True) as staged:
            write_tensors(staged / TENSORS, checkpoint.tensors)
            state = {"optimizer": checkpoint.optimizer, "schedule": checkpoint.schedule}
            _write_state(staged / STATE, state | {"generators": checkpoint.generators})
            storage.write_text(staged / TRAINER, checkpoint.trainer)
            storage.write_json(staged / LEDGER, {"ledger": asdict(ledger), "plan": checkpoint.plan})
        self.settle(ledger)

    def load(self, step: int) -> Checkpoint:
        """Read a checkpoint that this run wrote.

        Raises:
            StorageError: a file in it is missing or damaged.
        """
        path = self.path(step)
        with _readable(path):
            state = torch.load(path / STATE, map_location="cpu", weights_only=True)
            said = storage.read_json(path / LEDGER)
            return Checkpoint(
                tensors=safetensors.torch.load_file(path / TENSORS),
                optimizer=state["optimizer"],
                schedule=state["schedule"],
                generators=state["generators"],
                trainer=(path / TRAINER).read_text(encoding="utf-8"),
                ledger=Ledger(**said["ledger"]),
                plan=said["plan"],
            )

    def clear(self) -> None:
        """Remove all checkpoints."""
        if self.folder.exists():
            with storage.guarded(self.folder):
                shutil.rmtree(self.folder)

    def settle(self, ledger: Ledger) -> None:
        """Bring the folder in line with its latest checkpoint, whose ledger is given: what follows each save.

        If that checkpoint is the best so far, `best/` is made from it; then older checkpoints go. A process may have
        been killed before it came to this, so a run that is resumed begins with it.
        """
        if ledger.best_step == ledger.step and self._best_step() != ledger.step:
            with storage.new_folder(self.folder / "best", replace=True) as staged:
                shutil.copyfile(self.path(ledger.step) / TENSORS, staged / TENSORS)
                storage.write_json(staged / BEST, {"step": ledger.best_step, "evaluation_loss": ledger.best_loss})
        for step in self._steps() - {ledger.step}:
            self._remove(self.path(step))

    def load_best(self, step: int) -> dict[str, Tensor]:
        """Return the tensors of the best evaluated adapter, which must be that of `step`.

        Raises:
            StorageError: there is none, or another one, or it is damaged.
        """
        path = self.folder / "best"
        with _readable(path):
            if self._best_step() != step:
                raise ValueError(f"it is of step {self._best_step()}, not {step}")
            return safetensors.torch.load_file(path / TENSORS)

    def _remove(self, path: Path) -> None:
        """Remove a folder that nobody may see half removed: move it under a temporary name first."""
        aside = Path(tempfile.mkdtemp(prefix=storage.PARTIAL, dir=self.folder))
        os.replace(path, aside / path.name)
        shutil.rmtree(aside, ignore_errors=True)

    def _best_step(self) -> int | None:
        path = self.folder / "best" / BEST
        return int(storage.read_json(path)["step"]) if path.exists() else None

    def _steps(self) -> set[int]:
        entries = self.folder.iterdir() if self.folder.exists() else ()
        found = (re.fullmatch(r"step-(\d{6,})", entry.name) for entry in entries)
        return {int(match[1]) for match in found if match}


def trainable_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every trainable tensor by its name, on the CPU. A shared one is there once."""
    return {n: p.detach().cpu().contiguous().clone() for n, p in model.named_parameters() if p.requires_grad}


def load_trainable(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy `tensors` into the trainable tensors of `model`.

    Raises:
        AdapterError: names, shapes or types are not exactly those of the model.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    wanted = {name: (tuple(p.shape), p.dtype) for name, p in parameters.items()}
    given = {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}
    if wanted != given:
        name = min(n for n in wanted.keys() | given.keys() if wanted.get(n) != given.get(n))
        raise AdapterError(
            f"the checkpoint does not fit the model: {name} is {given.get(name, 'missing')}",
            wanted=f"{wanted.get(name, 'no such tensor')}",
            action="resume with the base and the settings that the run began with",
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors as safetensors and flush them to the disk."""
    _write_bytes(path, safetensors.torch.save(tensors, metadata={"format": "pt"}))


def _write_state(path: Path, state: dict[str, Any]) -> None:
    # Into memory first: torch's own writer reports a full disk as a RuntimeError without the cause.
    buffer = io.BytesIO()
    torch.save(state, buffer)
    _write_bytes(path, buffer.getbuffer())


def _write_bytes(path: Path, content: bytes | memoryview) -> None:
    with storage.guarded(path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn whatever a missing or damaged file causes into a `StorageError` that names its folder."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, UnpicklingError, SafetensorError) as error:
        raise StorageError(
            f"the checkpoint {path} cannot be read: {error}",
            wanted="the files that the run wrote",
            action="remove the folder `checkpoints` and resume: the run starts anew",
        ) from error
