"""One cell: a system with a seed, trained and scored; everything its line of the results holds."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from budwood.evals.likelihood import likelihoods, select_prompts
from budwood.evals.multiple_choice import answer_questions
from budwood.methods.idp.bank import PromptBank
from budwood.training.loss import find_targets

from .._table import machine
from .setting import Setting
from .systems import SYSTEMS, UNTRAINED

DIGITS = 5  # of nats a token


@dataclass(frozen=True)
class Cell:
    """A system and a seed of one table."""

    table: str
    system: str
    seed: int

    @property
    def key(self) -> str:
        """A cell whose key is in the file is not computed again."""
        return hashlib.sha256(f"{self.table}/{self.system}/{self.seed}".encode()).hexdigest()[:16]


def cells(setting: Setting, systems: Sequence[str], seeds: int) -> Iterator[Cell]:
    """Yield the cells of a table, seed by seed."""
    for seed in range(seeds):
        for name in systems:
            if seed == 0 or name not in UNTRAINED:
                yield Cell(setting.name, name, seed)


def compute(setting: Setting, cell: Cell) -> dict[str, Any]:
    """Train and score; return the line of the cell."""
    began = time.process_time()
    made = SYSTEMS[cell.system](setting, cell.seed)
    line = {
        "key": cell.key,
        **vars(cell),
        "parameters": made.parameters,
        "learning_rate": made.rate,
        "nll": _nll(made.model, setting),
        **_questions(made.model, setting),
    }
    if made.banks is not None:
        line |= _parts(made.banks, setting)
    return line | {
        "tokens": [row.supervised for row in setting.texts],
        "domains": list(setting.domains),
        "sizes": vars(setting.sizes),
        "models": [str(one.source.reference) for one in (setting.compressed, setting.uncompressed)],
        "cpu_minutes": round((time.process_time() - began) / 60, 3),
        "machine": machine("cpu", "devices", "python", "git"),
    }


def _nll(model: nn.Module, setting: Setting) -> list[float]:
    """Return nats a scored token of each text."""
    return [round(one.nll / one.tokens, DIGITS) for one in likelihoods(model, setting.texts)]


def _questions(model: nn.Module, setting: Setting) -> dict[str, Any]:
    if not setting.questions:
        return {}
    result = answer_questions(model, setting.questions, setting.compressed.tokenizer)
    return {"accuracy": result.to_dict(), "right": [int(one.right) for one in result.answers]}


def _parts(banks: Mapping[str, PromptBank], setting: Setting) -> dict[str, Any]:
    """Return what is behind each prompt alone, what each selector chooses, and the ensemble of all prompts."""
    first = next(iter(banks.values()))
    alone = {one.name: _nll(PromptBank(first.model, [one]), setting) for one in first.prompts}
    chosen = {name: select_prompts(bank, setting.texts).tolist() for name, bank in banks.items()}
    return {"alone": alone, "chosen": chosen, "ensemble": _ensemble(first, setting)}


@torch.no_grad()
def _ensemble(bank: PromptBank, setting: Setting) -> list[float]:
    """Return nats a token where the logits behind all prompts are averaged, prompt by prompt."""
    found = []
    for row in setting.texts:
        ids = torch.tensor([row.input_ids], device=bank.model.device)
        batch = {"labels": torch.tensor([row.labels]), "loss_weights": torch.tensor([row.loss_weights])}
        targets = find_targets({name: tensor.to(ids.device) for name, tensor in batch.items()})
        behind = [targets.pick(bank(ids, selection=[i]).logits).float() for i in range(len(bank))]
        nll = nn.functional.cross_entropy(torch.stack(behind).mean(dim=0), targets.ids)
        found.append(round(float(nll), DIGITS))
    return found
