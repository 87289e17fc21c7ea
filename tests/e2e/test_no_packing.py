"""Rows are never packed: a row of a batch learns what it learns alone, and `packing` is no setting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

import tests.tiny as tiny
from budwood import recipe
from budwood.data.collate import Collator
from budwood.data.problems import Origin
from budwood.data.render import Encoded
from budwood.errors import ConfigError
from budwood.training.loss import weighted_nll
from tests.training.rows import make_rows

ROWS = [
    Encoded(row.input_ids, row.labels, row.loss_weights, Origin("rows.jsonl", i), i)
    for i, row in enumerate(make_rows(5))
]


def sums(model: PreTrainedModel, rows: list[Encoded], **more: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack(weighted_nll(model, Collator(257)(rows) | more))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_a_row_in_a_batch_has_the_loss_that_it_has_alone(make: Callable[[], PreTrainedModel], attention: str):
    model = make().double()
    model.set_attn_implementation(attention)
    together, alone = sums(model, ROWS), sum(sums(model, [row]) for row in ROWS)
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=0)


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_rows_behind_one_another_would_not_though_their_positions_begin_anew(make: Callable[[], PreTrainedModel]):
    """Why there is no packing: a mask of ones lets each row read those before it, whatever its positions are."""
    first, second = ROWS[:2]
    labels = [*first.labels, -100, *second.labels[1:]]  # the first token of a row has nothing that predicts it
    packed = Encoded(
        first.input_ids + second.input_ids, labels, first.loss_weights + second.loss_weights, first.origin, 0
    )
    positions = torch.cat([torch.arange(len(row.input_ids)) for row in (first, second)])[None]
    model = make().double()
    model.set_attn_implementation("eager")
    alone = sum(sums(model, [row]) for row in (first, second))
    mask = torch.ones_like(positions)
    behind = sums(model, [packed], position_ids=positions, attention_mask=mask)
    assert torch.isclose(behind[1], alone[1]) and not torch.isclose(behind[0], alone[0], rtol=1e-4)


def test_there_is_no_such_setting():
    given = {"model": "m", "evidence": {"kind": "examples", "paths": ["rows.jsonl"]}, "data": {"packing": True}}
    with pytest.raises(ConfigError, match=r"no setting 'data\.packing'"):
        recipe.resolve(None, given)
