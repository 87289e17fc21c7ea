"""Stand-ins for what `budwood.data` makes: encoded rows and a collator."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from budwood.training.folder import RunFolder, read_events
from budwood.training.settings import TrainingSettings
from budwood.training.train import train
from tests import tiny


@dataclass(frozen=True)
class Encoded:
    input_ids: list[int]
    labels: list[int]
    loss_weights: list[float]


def make_rows(count: int, seed: int = 0, longest: int = 24, vocabulary: int = 250) -> list[Encoded]:
    """Ragged rows with prompts of different length and weights between 0.2 and 1."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        length = draw.randint(6, longest)
        prompt = draw.randint(1, length - 3)
        ids = [draw.randrange(vocabulary) for _ in range(length)]
        labels = [-100] * prompt + ids[prompt:]
        weights = [0.0] * prompt + [round(draw.uniform(0.2, 1.0), 3) for _ in range(length - prompt)]
        rows.append(Encoded(ids, labels, weights))
    return rows


def collate(rows: list[Encoded]) -> dict[str, Tensor]:
    def padded(lists, fill):
        return pad_sequence([torch.tensor(values) for values in lists], batch_first=True, padding_value=fill)

    return {
        "input_ids": padded([row.input_ids for row in rows], 257),
        "attention_mask": padded([[1] * len(row.input_ids) for row in rows], 0),
        "labels": padded([row.labels for row in rows], -100),
        "loss_weights": padded([row.loss_weights for row in rows], 0.0),
    }


def lora_model(seed: int = 0, dropout: float = 0.0, base=None, **changes) -> PeftModel:
    torch.manual_seed(seed)
    base = base if base is not None else tiny.llama()
    torch.manual_seed(seed)
    targets = {"target_modules": ["q_proj", "v_proj"]}
    return get_peft_model(base, LoraConfig(**({"r": 4, "lora_alpha": 8, "lora_dropout": dropout} | targets | changes)))


def settings(**changes) -> TrainingSettings:
    return TrainingSettings(**({"epochs": 1, "batch_size": 4, "learning_rate": 1e-2, "warmup_steps": 2} | changes))


def run(path, model, rows=None, evaluation=(), *, seed=0, **changes):
    kinds = {
        key: changes.pop(key)
        for key in ("probes", "judged_by", "probed", "retention", "resume", "progress")
        if key in changes
    }
    rows = make_rows(20) if rows is None else rows
    folder = RunFolder(path)
    return train(
        model, rows, evaluation, collate, settings(**changes), folder, seed=seed, **{"progress": False} | kinds
    )


def losses(path) -> list[float]:
    return [event["loss"] for event in read_events(path) if "loss" in event]
