"""Shared maps under `fully_shard`, in one process; two processes are in tests/training/test_distributed_gift.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from peft import PeftModel, get_peft_model
from torch.distributed.tensor import DTensor

import tests.tiny as tiny
from budwood import GiftConfig
from budwood.errors import UsageError
from budwood.tuning.sharding import fully_shard_shared

IDS = torch.arange(12).view(2, 6)


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> PeftModel:
    torch.manual_seed(0)
    return get_peft_model(tiny.llama(), GiftConfig(r=4, target_modules=["q_proj", "down_proj"], init_weights=False))


@pytest.mark.usefixtures("alone")
def test_every_parameter_is_sharded_once_and_a_second_call_is_refused():
    plain, sharded = model(), model()
    fully_shard_shared(sharded, sharded.get_base_model().model.layers)
    assert all(isinstance(parameter, DTensor) for parameter in sharded.parameters())
    assert len(list(sharded.parameters())) == len(list(plain.parameters()))
    with torch.no_grad():
        torch.testing.assert_close(sharded(IDS).logits, plain(IDS).logits)
    with pytest.raises(UsageError, match="sharded already"):
        fully_shard_shared(sharded, [])
