"""One process of a distributed run of GIFT on the CPU: `torch.distributed.run … distributed_gift.py FOLDER MODE`.

`trainer` is budwood's own training under DistributedDataParallel, with gradient checkpointing and accumulation.
`fsdp2` takes two steps with every weight sharded. The functions are also what the test runs in its own process.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from budwood import GiftConfig
from budwood.training.checkpoints import trainable_tensors
from budwood.training.folder import RunFolder
from budwood.training.train import train
from budwood.tuning.sharding import fully_shard_shared
from tests import tiny
from tests.training.rows import collate, make_rows, settings

GROUPS = [["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]]
SEVEN = [*GROUPS[0], "o_proj", *GROUPS[1], "down_proj"]
FIRED: Counter[str] = Counter()  # how often each trainable tensor's gradient was added to


def gift_model() -> PeftModel:
    """A tiny Llama with four groups, each shared by both layers, that has left its start behind."""
    sides = dict.fromkeys(SEVEN, "input") | {"down_proj": "output"}
    base = tiny.llama()
    torch.manual_seed(5)
    return get_peft_model(base, GiftConfig(r=4, target_modules=SEVEN, side=sides, share=GROUPS, init_weights=False))


def run_trainer(folder: Path, **changes: object) -> list[dict[str, Tensor]]:
    """Train, write the adapter's tensors, and return the gradients of every optimiser step."""
    model = gift_model()
    gradients: list[dict[str, Tensor]] = []
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in named.items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: FIRED.update([name]))
    hook = register_optimizer_step_pre_hook(
        lambda *_: gradients.append({name: p.grad.clone() for name, p in named.items()})
    )
    try:
        kinds = {"epochs": 2, "learning_rate": 1e-3, "max_grad_norm": 1e9} | changes
        train(model, make_rows(19), [], collate, settings(**kinds), RunFolder(folder), seed=0, progress=False)
    finally:
        hook.remove()
    torch.save(trainable_tensors(model), folder.with_suffix(".pt"))
    return gradients


def take_steps(model: nn.Module, share: slice, processes: int) -> dict[str, Tensor]:
    """Take two steps of AdamW on this process's rows; return gradients and values of all trainable tensors, whole."""
    batch = collate(make_rows(4))
    weights = batch["loss_weights"][:, 1:]
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(2):
        optimiser.zero_grad()
        logits = model(input_ids=batch["input_ids"][share], attention_mask=batch["attention_mask"][share]).logits
        targets = batch["labels"][share, 1:]
        nll = nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none")
        loss = (nll * weights[share]).sum() / weights.sum()
        (loss * processes).backward()  # FSDP averages over processes; their sum is wanted
        optimiser.step()
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {f"grad {name}": whole(p.grad) for name, p in named.items()} | {n: whole(p) for n, p in named.items()}


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def run_fsdp2(folder: Path, rank: int) -> None:
    dist.init_process_group("gloo")
    model = gift_model().train()
    fully_shard_shared(model, model.get_base_model().model.layers)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    torch.save(take_steps(model, slice(2 * rank, 2 * rank + 2), dist.get_world_size()), folder / f"steps-{rank}.pt")
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        model.save_pretrained(folder / "adapter", state_dict=state, save_embedding_layers=False)


def main() -> None:
    folder, mode, rank = Path(sys.argv[1]), sys.argv[2], int(os.environ["RANK"])
    if mode == "fsdp2":
        run_fsdp2(folder, rank)
    else:
        gradients = run_trainer(folder / f"run-{rank}", batch_size=1, accumulate=4, gradient_checkpointing=True)
        torch.save({"gradients": gradients, "fired": dict(FIRED)}, folder / f"seen-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
