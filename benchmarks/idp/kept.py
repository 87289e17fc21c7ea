"""What a tuner of the table has learned, kept in the work folder: it is scored or looked at again without training."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from budwood.storage import make_folder, new_file

RATE = "learning_rate"


def keep(path: Path, model: nn.Module, rate: float) -> None:
    """Write the trained parameters, and the learning rate that they were found with."""
    make_folder(path.parent)
    learned = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters() if p.requires_grad}
    with new_file(path, replace=True) as file:
        save_file(learned, file, metadata={RATE: repr(rate)})


@torch.no_grad()
def restore(path: Path, model: nn.Module) -> float:
    """Put kept parameters into a fresh model of the same kind and return the learning rate."""
    learned = load_file(path)
    fresh = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert learned.keys() == fresh.keys(), f"{path} was kept of another model"
    for name, parameter in fresh.items():
        parameter.copy_(learned[name])
    with safe_open(path, framework="pt") as file:
        return float(file.metadata()[RATE])
