"""A tiny model that has learned some of its rows by heart and some not, and the rows."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

from budwood.data.collate import Collator
from budwood.data.problems import Origin
from budwood.data.render import Renderer
from budwood.data.rows import Message, Row
from tests import tiny

CAPITALS = {"Peru": "Lima", "Cuba": "Havana", "Chad": "N'Djamena", "Fiji": "Suva", "Iran": "Tehran", "Mali": "Bamako"}


def make_row(question: str, *answers: str, line: int = 1, task: str | None = None) -> Row:
    messages = (Message("user", question), Message("assistant", answers[0], trained=True))
    return Row(messages, answers, Origin("rows.jsonl", line), task)


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return Renderer(tiny.tokenizer())


@pytest.fixture(scope="session")
def learned_rows() -> list[Row]:
    return [make_row(land, city, line=i, task="capital") for i, (land, city) in enumerate(CAPITALS.items(), start=1)]


@pytest.fixture(scope="session")
def rows(learned_rows: list[Row]) -> list[Row]:
    """The learned rows; one whose second reference was learned; and two that nobody learned."""
    return [
        *learned_rows,
        make_row("Fiji", "Suva city", "Suva", line=7, task="alias"),
        make_row("Oman and its neighbours", "Muscat", line=8, task="unknown"),
        make_row("?", "It is not known to me, sorry", line=9, task="unknown"),
    ]


@pytest.fixture(scope="session")
def trained(renderer: Renderer, learned_rows: list[Row]) -> LlamaForCausalLM:
    """A tiny Llama that writes the answers of the learned rows."""
    model = tiny.llama(seed=1)
    batch = Collator(pad_token_id=257)([one for row in learned_rows for one in renderer.encode(row)])
    batch.pop("loss_weights")
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        model(**batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return model.eval()
