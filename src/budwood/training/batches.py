"""Which rows make up each optimiser step, and how a step is split into batches.

The rows of a step depend on the seed and the epoch only. How they are split, over accumulation and over processes, may
therefore follow speed: rows of similar length share a batch, which saves padding. Each row is seen once an epoch: none
is dropped at its end, or seen twice to fill up.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from budwood.training.loss import IGNORED
from budwood.training.plan import Plan

if TYPE_CHECKING:
    from budwood.data.render import Encoded

BLANK = -1  # the index of a row without targets, for a process that has no row left in an epoch's last step


class Rows(Dataset["Encoded"]):
    """Encoded rows, and at `BLANK` a row without targets."""

    def __init__(self, rows: Sequence[Encoded]) -> None:
        self._rows = rows
        shortest = min(rows, key=lambda row: len(row.input_ids))
        length = len(shortest.input_ids)
        self._blank = dataclasses.replace(shortest, labels=[IGNORED] * length, loss_weights=[0.0] * length)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Encoded:
        return self._blank if index == BLANK else self._rows[index]


class StepSampler(Sampler[list[int]]):
    """The batches of one process, in order, for one epoch.

    Every process gets the same number of batches: `accumulate` of them a step, perhaps fewer in an epoch's last step.

    Args:
        lengths: tokens of each row.
        plan: the run; `plan.rows` is `len(lengths)`.
        process: index of this process.
    """

    def __init__(self, lengths: Sequence[int], plan: Plan, process: int = 0) -> None:
        self._lengths, self._plan, self._process, self._epoch = lengths, plan, process, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration goes through."""
        self._epoch = epoch

    def __len__(self) -> int:
        full, rest = divmod(self._plan.rows, self._plan.rows_per_step)
        return full * self._plan.settings.accumulate + self._batches_for(rest)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        for start in range(0, len(order), self._plan.rows_per_step):
            yield from self._split(order[start : start + self._plan.rows_per_step])

    def _order(self) -> list[int]:
        generator = torch.Generator().manual_seed(self._plan.seed * 1_000_003 + self._epoch)
        return torch.randperm(self._plan.rows, generator=generator).tolist()

    def _batches_for(self, rows: int) -> int:
        """Return how many batches each process gets of a step of `rows` rows."""
        return math.ceil(rows / (self._plan.settings.batch_size * self._plan.processes))

    def _split(self, step: list[int]) -> list[list[int]]:
        lengths, size = [self._lengths[row] for row in step], self._plan.settings.batch_size
        dealt = dealt_out(lengths, size, self._process, self._plan.processes)
        return [[step[i] for i in batch] or [BLANK] for batch in dealt]


def dealt_out(lengths: Sequence[int], size: int, process: int = 0, processes: int = 1) -> list[list[int]]:
    """Return one process's batches of the rows of a step, by their place in it: the longest first, dealt out evenly.

    Every process gets the same number of batches; some are empty where there are fewer rows than processes.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    count = math.ceil(len(order) / (size * processes)) * processes
    cuts = [round(i * len(order) / count) for i in range(count + 1)] if count else []
    return [order[a:b] for a, b in itertools.pairwise(cuts)][process::processes]


class StepLoader(DataLoader):
    """A `DataLoader` of a `StepSampler`, which the Trainer tells the epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)


def train_loader(
    rows: Sequence[Encoded],
    collate: Callable[[list[Encoded]], dict[str, Tensor]],
    plan: Plan,
    process: int,
    pin_memory: bool,
) -> StepLoader:
    """Return the loader of the training batches of one process."""
    return StepLoader(
        Rows(rows),
        batch_sampler=StepSampler([len(row.input_ids) for row in rows], plan, process),
        collate_fn=collate,
        num_workers=plan.settings.workers,
        pin_memory=pin_memory,
    )


def evaluation_batches(rows: Sequence[Encoded], batch_size: int, process: int, processes: int) -> list[list[Encoded]]:
    """Return this process's share of the evaluation rows in batches, rows of similar length together."""
    ordered = sorted(rows, key=lambda row: -len(row.input_ids))
    batches = [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]
    return batches[process::processes]
