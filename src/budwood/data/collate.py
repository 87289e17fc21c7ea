"""Sequences to a batch: padded on the right, everything masked by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from budwood.data.render import UNTRAINED, Encoded


@dataclass(frozen=True)
class Collator:
    """Pads sequences to the longest of the batch.

    Args:
        pad_token_id: any id of the vocabulary; it may be eos, since nothing is masked by id.
        pad_to_multiple_of: the padded length is rounded up to a multiple of this.
    """

    pad_token_id: int
    pad_to_multiple_of: int = 1

    def __call__(self, sequences: Sequence[Encoded]) -> dict[str, Tensor]:
        """Return `input_ids`, `attention_mask` (1 on tokens, 0 on pads), `labels` (-100 on pads) as int64 and
        `loss_weights` as float32 (0 on pads), each of shape (sequences, padded length). Labels are not shifted."""
        longest = max(len(one.input_ids) for one in sequences)
        shape = (len(sequences), -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of)
        batch = {
            "input_ids": torch.full(shape, self.pad_token_id, dtype=torch.long),
            "attention_mask": torch.zeros(shape, dtype=torch.long),
            "labels": torch.full(shape, UNTRAINED, dtype=torch.long),
            "loss_weights": torch.zeros(shape, dtype=torch.float32),
        }
        for i, one in enumerate(sequences):
            length = len(one.input_ids)
            batch["input_ids"][i, :length] = torch.tensor(one.input_ids)
            batch["attention_mask"][i, :length] = 1
            batch["labels"][i, :length] = torch.tensor(one.labels)
            batch["loss_weights"][i, :length] = torch.tensor(one.loss_weights, dtype=torch.float32)
        return batch
