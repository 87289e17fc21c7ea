"""One process of a distributed run on the CPU: `torch.distributed.run … distributed.py FOLDER [stop] [resume]`.

With `stop`, the second process alone is asked to stop, after its third batch.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from budwood.errors import BudwoodError
from budwood.training.checkpoints import trainable_tensors
from budwood.training.folder import RunFolder
from budwood.training.train import train
from tests.training.rows import collate, lora_model, make_rows, settings

RANK = int(os.environ["RANK"])
FOLDER = Path(sys.argv[1])


class Stopping:
    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, rows):
        self.batches += 1
        if "stop" in sys.argv and RANK == 1 and self.batches == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return collate(rows)


def main() -> int:
    model = lora_model()
    changes = settings(batch_size=2, accumulate=2, epochs=2, evaluate_every=2, learning_rate=1e-2)
    rows, evaluation = make_rows(19), make_rows(5, 1)
    probes = {"rank": lambda model: {"of": float(RANK)}}
    kinds = {"seed": 0, "probes": probes, "progress": False, "resume": "resume" in sys.argv}
    try:
        train(model, rows, evaluation, Stopping(), changes, RunFolder(FOLDER / "run"), **kinds)
    except BudwoodError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    torch.save(trainable_tensors(model), FOLDER / f"final-{RANK}.pt")
    return 0


if __name__ == "__main__":
    code = main()
    torch.distributed.destroy_process_group()
    sys.exit(code)
