"""GIFT on two processes takes the steps of one: under the Trainer (DDP) and with every weight sharded (FSDP2)."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel

from tests import tiny
from tests.training.distributed_gift import gift_model, run_trainer, take_steps
from tests.training.distributed_launch import launch

SCRIPT = "distributed_gift.py"


@pytest.mark.slow
def test_two_processes_with_checkpointing_and_accumulation_take_the_steps_of_one(tmp_path):
    """Batches of 1 x 4 on two processes, activations computed twice, against plain batches of 8."""
    done = launch(SCRIPT, tmp_path / "two", "trainer")
    assert done.returncode == 0, done.stderr
    seen = [torch.load(tmp_path / "two" / f"seen-{rank}.pt") for rank in (0, 1)]
    one = run_trainer(tmp_path / "one", batch_size=8)
    for of_two in seen:
        assert len(one) == len(of_two["gradients"]) == 6
        for gradients, wanted in zip(of_two["gradients"], one):
            for name, gradient in wanted.items():
                torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=1e-6)
        # 4 + 4 + 2 batches an epoch for each process (19 rows). Shared by two layers, each tensor fires once a batch.
        assert set(of_two["fired"].values()) == {20} and len(of_two["fired"]) == 8
    tensors = [torch.load(tmp_path / "two" / f"run-{rank}.pt") for rank in (0, 1)]
    for name, tensor in torch.load(tmp_path / "one.pt").items():
        assert torch.equal(tensors[0][name], tensors[1][name])
        torch.testing.assert_close(tensors[0][name], tensor, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_sharded_by_fsdp2_takes_the_steps_of_one_process_and_saves(tmp_path):
    done = launch(SCRIPT, tmp_path, "fsdp2")
    assert done.returncode == 0, done.stderr
    model = gift_model().train()
    wanted = take_steps(model, slice(None), 1)
    for rank in (0, 1):
        got = torch.load(tmp_path / f"steps-{rank}.pt")
        assert got.keys() == wanted.keys()
        for name, tensor in wanted.items():
            torch.testing.assert_close(got[name], tensor, rtol=0, atol=1e-5)
    again = PeftModel.from_pretrained(tiny.llama(), tmp_path / "adapter").eval()
    ids = torch.arange(12).view(2, 6)
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model.eval()(ids).logits, rtol=0, atol=1e-4)
