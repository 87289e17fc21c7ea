"""One process of a distributed run with the frozen-prefix cache; its argument is the folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from budwood.training.checkpoints import trainable_tensors
from budwood.training.folder import RunFolder
from budwood.training.prefix_cache import PrefixCache
from budwood.training.train import train
from tests.training.rows import collate, make_rows, settings
from tests.training.stacks import top

RANK, FOLDER = int(os.environ["RANK"]), Path(sys.argv[1])


def main() -> None:
    caches, attached = [], PrefixCache.attached
    PrefixCache.attached = lambda self, model: caches.append(self) or attached(self, model)
    model = top()
    changes = settings(batch_size=2, accumulate=2, epochs=2, normalise="sequence", cache_prefix=True)
    kinds = {"seed": 0, "progress": False}
    train(model, make_rows(11), make_rows(5, 1), collate, changes, RunFolder(FOLDER / "run"), **kinds)
    torch.save(trainable_tensors(model), FOLDER / f"final-{RANK}.pt")
    (FOLDER / f"served-{RANK}.txt").write_text(str(caches[-1].batches))


if __name__ == "__main__":
    main()
    torch.distributed.destroy_process_group()
