"""Trains in child processes that are killed, resumes, and compares with a run that was left alone.

    python -m tests.training.killed FOLDER (points N | moments N)

`points` kills a child right before its k-th operation on a file, for N values of k spread over a whole run, so that
every place between two operations can be hit. `moments` kills from outside, after times spread over a run. Each killed
run is resumed until it is through, in each case after one more kill. torch is loaded once: children are forks, which
needs OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from budwood.training.checkpoints import CheckpointStore, trainable_tensors
from budwood.training.folder import RunFolder, read_events, read_status
from budwood.training.train import train
from tests.training.rows import collate, lora_model, make_rows, settings

OPERATIONS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.copyfile", "shutil.rmtree"}


def train_once(path: Path) -> None:
    """One session of the run: the first, or one that resumes."""
    model = lora_model(dropout=0.2)
    changes = settings(batch_size=2, accumulate=2, epochs=2, evaluate_every=2, save_every=3, learning_rate=0.05)
    rows, folder = (make_rows(14), make_rows(4, 1)), RunFolder(path)
    train(model, *rows, collate, changes, folder, seed=0, progress=False, resume=bool(read_status(path)))
    torch.save(trainable_tensors(model), path / "final.pt")


def child(path: Path, before_operation: int | None = None) -> int:
    """Fork a session that kills itself before its n-th operation on a file in `path`; return the child's id."""
    pid = os.fork()
    if pid:
        return pid
    done = 0

    def count(event: str, arguments: tuple) -> None:
        nonlocal done
        if event in OPERATIONS and (event != "open" or str(path) in str(arguments[0])):
            done += 1
            if done == before_operation:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(count)
        train_once(path)
        (path / "operations").write_text(str(done))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def wait(pid: int) -> bool:
    """Whether the child came through; an error in it, other than being killed, ends this program."""
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"a session failed with {os.WEXITSTATUS(status)}")
    return os.WIFEXITED(status)


def outcome(path: Path) -> tuple:
    """Everything a run leaves that must not depend on whether it was killed."""
    events = [{k: v for k, v in event.items() if k != "tokens_per_s"} for event in read_events(path)]
    store = CheckpointStore(path / "checkpoints")
    saved = store.load(store.latest())
    best = {name: tensor.tolist() for name, tensor in store.load_best(saved.ledger.best_step).items()}
    final = {name: tensor.tolist() for name, tensor in torch.load(path / "final.pt").items()}
    names = sorted(entry.name for entry in (path / "checkpoints").iterdir())
    return events, names, str(saved.optimizer), str(saved.tensors), best, final, read_status(path)["state"]


def require_whole(path: Path) -> None:
    """Every checkpoint that a killed process left can be read."""
    store = CheckpointStore(path / "checkpoints")
    for step in store._steps():
        store.load(step)


def check(path: Path, kills: list, wanted: tuple) -> None:
    shutil.rmtree(path, ignore_errors=True)
    for kill in kills:
        pid = child(path, kill if isinstance(kill, int) else None)
        if not isinstance(kill, int):
            time.sleep(kill)
            os.kill(pid, signal.SIGKILL)
        if wait(pid):
            break
        require_whole(path)
    assert wait(child(path))
    for number, (found, expected) in enumerate(zip(outcome(path), wanted, strict=True)):
        if found != expected:
            sys.exit(f"killed at {kills}: part {number} of the outcome differs:\n{found}\n{expected}")


def main(folder: Path, mode: str, count: int) -> None:
    straight = folder / "straight"
    begin = time.monotonic()
    assert wait(child(straight))
    seconds, wanted = time.monotonic() - begin, outcome(straight)
    operations = int((straight / "operations").read_text())
    for i in range(count):
        part = (i + 0.5) / count
        kills = [1 + int(part * operations), 7 + 13 * i % 40] if mode == "points" else [part * seconds, seconds / 3]
        check(folder / "killed", kills, wanted)
    print(f"{count} kills by {mode}, {operations} operations")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
