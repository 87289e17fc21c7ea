"""Rows packed behind one beginning get the losses, gradients and hits that they have when they stand alone."""

from __future__ import annotations

import pytest
import torch
from benchmarks.instructions.learning import judge
from benchmarks.instructions.packing import group_size, pack, shared_length
from benchmarks.instructions.tasks import Question

import budwood.peft
from budwood.data.collate import Collator
from budwood.data.files import Record
from budwood.data.problems import Origin
from budwood.data.render import Encoded, Renderer
from budwood.data.rows import to_row
from budwood.evals import likelihoods
from budwood.training.loss import weighted_nll
from budwood.tuning.attach import attach
from budwood.tuning.registry import find_tuner
from tests import tiny

TEXTS = [
    [("Say the day.\nInput: one\nOutput:", " Monday"), ("Say the day.\nInput: three\nOutput:", " Wednesday")],
    [("Name a tree.\nOutput:", " oak"), ("Name a tree.\nOutput:", " oak tree"), ("Name a tree.\nOutput:", " fir")],
    [("Alone.", " yes")],
]


@pytest.fixture
def groups() -> list[list[Encoded]]:
    renderer = Renderer(tiny.tokenizer(), "plain")
    return [
        [
            renderer.encode(to_row(Record({"prompt": prompt, "completion": answer}, Origin("made up"))))[0]
            for prompt, answer in texts
        ]
        for texts in TEXTS
    ]


def adapted(tuner: str, attention: str) -> torch.nn.Module:
    """A tiny model with an adapter that changes it: every adapter tensor is random."""
    budwood.peft.register()
    found = find_tuner(tuner)
    base = tiny.llama(attn_implementation=attention)
    model = attach(base.requires_grad_(False), found, found.settings(rank=4), seed=0)
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("tuner", ["gift", "lora"])
@pytest.mark.parametrize("width", [1, 60, 1000])
def test_packed_equals_alone(groups, tuner, attention, width):
    model = adapted(tuner, attention)
    packed = pack(groups, width)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = {}
    for name, batch in {
        "packed": packed.batch,
        "alone": Collator(0)([row for rows in groups for row in rows]),
    }.items():
        total, count = weighted_nll(model, batch)
        found[name] = (total / count, count, torch.autograd.grad(total / count, parameters))
    assert found["packed"][1] == found["alone"][1]
    torch.testing.assert_close(found["packed"][0], found["alone"][0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found["packed"][2], found["alone"][2], atol=1e-5, rtol=1e-4)


def test_a_row_sees_nothing_of_the_others(groups):
    """Another answer beside a row changes none of its losses."""
    model = adapted("gift", "eager")
    both, alone = groups[0], groups[0][:1]
    scores = [judge(model, [[Question((row,)) for row in rows]])[0][0].nll for rows in (both, alone)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_judge_equals_likelihoods(groups):
    model = adapted("lora", "sdpa")
    rows = [row for group in groups for row in group]
    # What the model says itself is exact, so that both answers occur.
    own = _greedy(model, rows[0])
    tasks = [[Question((row,)) for row in group] for group in groups] + [[Question((own,)), Question((rows[0], own))]]
    scores, tokens = judge(model, tasks)
    expected = likelihoods(model, [*rows, own, rows[0]])
    assert [score.nll for score in scores] == pytest.approx([one.nll for one in expected], abs=1e-4)
    assert [score.tokens for score in scores] == [one.tokens for one in expected]
    assert [score.exact for score in scores[:-1]] == [one.exact for one in expected[:-1]]
    assert scores[-2].exact and scores[-1].exact and not scores[0].exact
    assert tokens == sum(map(group_size, [*groups, [own, rows[0], own]]))


def _greedy(model: torch.nn.Module, row: Encoded) -> Encoded:
    """The row's prompt with three tokens that the model finds most likely."""
    ids = row.input_ids[: row.labels.count(-100)]
    prompt = len(ids)
    for _ in range(3):
        with torch.no_grad():
            ids = [*ids, int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())]
    labels = [-100] * prompt + ids[prompt:]
    return Encoded(ids, labels, [float(label != -100) for label in labels], row.origin, 0)


def test_what_is_shared_leaves_a_token_of_each_prompt(groups):
    same = groups[1]
    prompt = same[0].labels.count(-100)
    assert shared_length(same) == prompt - 1
    assert group_size(same) == prompt - 1 + sum(len(row.input_ids) - prompt + 1 for row in same)
    assert group_size(same) == pack([same], 1).tokens
