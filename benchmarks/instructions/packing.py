"""Several rows of one task behind one copy of their common beginning, so that a definition is computed once.

An adapter changes the keys of the definition too, so they cannot be kept from step to step; but within a batch the
rows of a task can share them. A *group* is laid out as its shared beginning, then what is left of each row; positions
go on from the beginning for each row, and a mask lets a token see the beginning, its own row, and nothing else. Each
row then gets the hidden states it has when it stands alone. Several groups may follow one another in a sequence,
apart in the same way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from budwood.data.render import UNTRAINED, Encoded

_PAD = -1  # the group of padding: pads see pads only


@dataclass(frozen=True)
class Packed:
    """A batch of packed rows.

    Attributes:
        batch: what `training.loss` reads: `input_ids`, `position_ids`, `labels` (-100 or id), `loss_weights`, each of
            shape (sequences, length), and `attention_mask` (sequences, 1, length, length), to be added to the scores.
        owners: for each target, in the order of `training.loss.find_targets`, the index of its row among those given.
        tokens: how many tokens are computed, padding not counted.
    """

    batch: dict[str, Tensor]
    owners: Tensor
    tokens: int

    def to(self, device: torch.device) -> Packed:
        """Return the batch on `device`; `owners` stays."""
        return Packed({name: tensor.to(device) for name, tensor in self.batch.items()}, self.owners, self.tokens)


@dataclass
class _Lane:
    """One sequence in the making: an entry a token in each list."""

    ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)  # 0: the shared beginning of a group; 1, 2, …: its rows
    owners: list[int] = field(default_factory=list)  # an entry a target

    def add(self, rows: Sequence[tuple[int, Encoded]]) -> None:
        """Append one group: (index, row) pairs."""
        group, shared = len(self.groups), shared_length([row for _, row in rows])
        self._write(rows[0][1], range(shared), group, 0)
        for branch, (index, row) in enumerate(rows, start=1):
            self._write(row, range(shared, len(row.input_ids)), group, branch)
            self.owners += [index] * row.supervised

    def _write(self, row: Encoded, positions: range, group: int, branch: int) -> None:
        self.ids += row.input_ids[positions.start : positions.stop]
        self.labels += row.labels[positions.start : positions.stop]
        self.positions += positions
        self.groups += [group] * len(positions)
        self.branches += [branch] * len(positions)


def shared_length(rows: Sequence[Encoded]) -> int:
    """Return how many tokens at the beginning are the same in all rows, but at least one less than any prompt has.

    So what is left of each row begins with a token of its prompt, which nothing predicts: no target's predecessor lies
    outside its own row.
    """
    columns = zip(*(row.input_ids for row in rows))
    common = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    prompts = [next(i for i, label in enumerate(row.labels) if label != UNTRAINED) for row in rows]
    return min(common, *(prompt - 1 for prompt in prompts))


def pack(groups: Iterable[Sequence[Encoded]], width: int, dtype: torch.dtype = torch.float32) -> Packed:
    """Lay groups of rows out as one batch.

    Args:
        groups: rows of one task each; they are counted through for `Packed.owners`.
        width: groups are put into one sequence as long as they fit into this many tokens.
        dtype: of the mask: that of the model.
    """
    lanes: list[_Lane] = []
    indices = itertools.count()
    sized = [(group_size(rows), [(next(indices), row) for row in rows]) for rows in groups]
    for size, numbered in sorted(sized, key=lambda one: -one[0]):
        lane = next((lane for lane in lanes if len(lane.ids) + size <= width), None)
        if lane is None:
            lane = _Lane()
            lanes.append(lane)
        lane.add(numbered)
    return _collate(lanes, dtype)


def group_size(rows: Sequence[Encoded]) -> int:
    """Return how many tokens a group takes."""
    shared = shared_length(rows)
    return shared + sum(len(row.input_ids) - shared for row in rows)


def _collate(lanes: Sequence[_Lane], dtype: torch.dtype) -> Packed:
    labels = _padded([lane.labels for lane in lanes], UNTRAINED)
    batch = {
        "input_ids": _padded([lane.ids for lane in lanes], 0),
        "position_ids": _padded([lane.positions for lane in lanes], 0),
        "labels": labels,
        "loss_weights": (labels != UNTRAINED).float(),
        "attention_mask": _mask(
            _padded([lane.groups for lane in lanes], _PAD), _padded([lane.branches for lane in lanes], 0), dtype
        ),
    }
    owners = torch.tensor([owner for lane in lanes for owner in lane.owners])
    return Packed(batch, owners, sum(len(lane.ids) for lane in lanes))


def _padded(lists: Sequence[Sequence[int]], filler: int) -> Tensor:
    longest = max(map(len, lists))
    return torch.tensor([[*one, *([filler] * (longest - len(one)))] for one in lists])


def _mask(groups: Tensor, branches: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the token of a row of the mask may see that of a column, the lowest number elsewhere."""
    length = groups.shape[1]
    sees = torch.ones(length, length, dtype=torch.bool).tril()
    sees = sees & (groups[:, :, None] == groups[:, None, :])
    sees = sees & ((branches[:, :, None] == branches[:, None, :]) | (branches[:, None, :] == 0))
    return torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min).unsqueeze(1)
