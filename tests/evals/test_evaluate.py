from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from budwood.data.rows import Message, Row
from budwood.errors import DataError, NonFiniteError
from budwood.evals import evaluate as evaluate_module
from budwood.evals.evaluate import base_of, evaluate_rows, with_base
from budwood.evals.generation import generate
from budwood.evals.likelihood import likelihoods
from budwood.evals.metrics import exact_match, rouge_l
from tests import tiny
from tests.evals.conftest import make_row


@pytest.fixture
def adapted(trained):
    """The trained model as a base, under an adapter that changes its answers; the base stays as it is."""
    torch.manual_seed(0)
    base = tiny.llama()
    base.load_state_dict(trained.state_dict())
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False, r=8)
    return get_peft_model(base, config).eval()


def test_answers_equal_plain_generation(trained, rows, renderer):
    result = evaluate_rows(trained, rows, renderer)
    plain = generate(trained, [renderer.prompt(row) for row in rows], renderer, max_new_tokens=result.max_new_tokens)
    assert [record.prediction for record in result.records] == [one.text for one in plain]
    assert [record.exact_match for record in result.records] == [
        exact_match(one.text, row.references) for one, row in zip(plain, rows)
    ]
    assert [record.rouge_l for record in result.records] == [
        rouge_l(one.text, row.references) for one, row in zip(plain, rows)
    ]


def test_only_rows_that_are_not_forced_exact_are_generated(trained, rows, renderer, monkeypatch):
    asked = []

    def spy(model, prompts, *args, **settings):
        asked.extend(prompts)
        return generate(model, prompts, *args, **settings)

    monkeypatch.setattr(evaluate_module, "generate_texts", spy)
    result = evaluate_rows(trained, rows, renderer)
    assert asked == [renderer.prompt(row) for row in rows[6:]]
    assert result.generated == 3 and result.rows == 9


def test_another_reference_counts_though_the_row_is_not_forced_exact(trained, rows, renderer):
    record = evaluate_rows(trained, rows, renderer).records[6]
    assert (record.forced_exact, record.prediction, record.exact_match) == (False, "Suva", 1.0)


def test_means(trained, rows, renderer):
    result = evaluate_rows(trained, rows, renderer)
    found = likelihoods(trained, [one for row in rows for one in renderer.encode(row)])
    assert result.tokens == sum(one.tokens for one in found) == sum(len(r.references[0]) + 1 for r in result.records)
    assert result.nll == pytest.approx(sum(one.nll for one in found) / result.tokens)
    assert result.row_nll == pytest.approx(sum(one.nll / one.tokens for one in found) / 9)
    assert result.forced_exact == pytest.approx(6 / 9)
    assert result.exact_match == pytest.approx(7 / 9)
    assert result.by_task["capital"].exact_match == 1.0 and result.by_task["unknown"].exact_match == 0.0
    assert sum(means.rows for means in result.by_task.values()) == 9
    assert result.max_new_tokens == 52  # 1.5 times 29 bytes (28 and the end token), rounded up, and 8


@pytest.mark.parametrize("batch_size", [1, 4])
def test_batch_size_changes_nothing(batch_size, trained, rows, renderer):
    auto, other = evaluate_rows(trained, rows, renderer), evaluate_rows(trained, rows, renderer, batch_size=batch_size)
    assert other.nll == pytest.approx(auto.nll, abs=1e-5)
    assert [r.prediction for r in other.records] == [r.prediction for r in auto.records]


def test_a_conversation_is_judged_by_all_its_turns_and_asked_for_the_last(trained, renderer, learned_rows):
    row = Row(
        (
            Message("user", "Cuba"),
            Message("assistant", "Wrong", trained=True),
            Message("user", "Peru"),
            Message("assistant", "Lima", trained=True),
        ),
        ("Lima",),
        learned_rows[0].origin,
    )
    result = evaluate_rows(trained, [row], renderer)
    assert result.tokens == len("Wrong") + 1 + len("Lima") + 1
    (plain,) = generate(trained, [renderer.prompt(row)], renderer, max_new_tokens=result.max_new_tokens)
    assert result.records[0].prediction == plain.text and not result.records[0].forced_exact


def test_an_answer_that_does_not_follow_the_prompt_is_generated(trained, learned_rows, renderer, monkeypatch):
    monkeypatch.setattr(renderer, "prompt", lambda row: [65, 66])
    result = evaluate_rows(trained, learned_rows[:1], renderer)
    assert result.forced_exact == 1.0 and result.generated == 1


def test_without_generation(trained, rows, renderer):
    result = evaluate_rows(trained, rows, renderer, generate=False)
    assert (result.exact_match, result.rouge_l, result.max_new_tokens, result.generated) == (None, None, None, 0)
    assert result.forced_exact > 0 and result.records[0].prediction is None


def test_rows_longer_than_the_context_are_dropped_and_counted(trained, rows, renderer):
    result = evaluate_rows(trained, [*rows, make_row("x" * 400, "y")], renderer)
    assert (result.rows, result.dropped) == (9, 1)
    with pytest.raises(DataError, match="none of 1 rows"):
        evaluate_rows(trained, [make_row("x" * 400, "y")], renderer)


def test_no_rows_and_broken_weights_are_errors(rows, renderer):
    with pytest.raises(DataError, match="no rows"):
        evaluate_rows(tiny.llama(), [], renderer)
    broken = tiny.llama()
    broken.model.norm.weight.data[0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"rows\.jsonl, line 1"):
        evaluate_rows(broken, rows, renderer)


def test_the_base_is_the_base_and_the_adapter_the_adapter(adapted, trained, rows, renderer):
    comparison = with_base(adapted, rows, renderer)
    alone = evaluate_rows(trained, rows, renderer)
    assert comparison.base.nll == pytest.approx(alone.nll, abs=1e-6)
    assert [r.prediction for r in comparison.base.records] == [r.prediction for r in alone.records]
    assert comparison.adapted.nll == evaluate_rows(adapted, rows, renderer).nll != alone.nll
    assert comparison.adapted.max_new_tokens == comparison.base.max_new_tokens
    difference = comparison.paired["nll"]
    assert difference.mean == pytest.approx(comparison.adapted.nll - comparison.base.nll)
    gain = comparison.adapted.exact_match - comparison.base.exact_match
    assert comparison.paired["exact_match"].mean == pytest.approx(gain)
    assert difference.low <= difference.mean <= difference.high


def test_the_base_need_not_generate(adapted, rows, renderer):
    comparison = with_base(adapted, rows, renderer, base_generate=False)
    assert comparison.base.exact_match is None and comparison.adapted.exact_match is not None
    assert set(comparison.paired) == {"nll", "forced_exact"}


@pytest.mark.parametrize("trainable", [True, False])
def test_the_model_is_as_before(trainable, adapted, rows, renderer):
    for parameter in adapted.parameters():
        parameter.requires_grad_(trainable and parameter.requires_grad)
    adapted.train()
    flags = {name: p.requires_grad for name, p in adapted.named_parameters()}
    values = {name: p.clone() for name, p in adapted.named_parameters()}
    with_base(adapted, rows, renderer)
    assert {name: p.requires_grad for name, p in adapted.named_parameters()} == flags
    assert all(torch.equal(p, values[name]) for name, p in adapted.named_parameters())
    assert adapted.training and not adapted.get_model_status().enabled == "irregular"


def test_a_soft_prompt_is_evaluated_beside_its_base(trained, rows, renderer):
    torch.manual_seed(0)
    model = get_peft_model(trained, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    comparison = with_base(model, rows, renderer)
    alone = evaluate_rows(trained, rows, renderer)
    assert comparison.base.nll == pytest.approx(alone.nll, abs=1e-6)
    assert [one.prediction for one in comparison.base.records] == [one.prediction for one in alone.records]
    assert comparison.adapted.nll != comparison.base.nll
    prompts = [renderer.prompt(row) for row in rows]
    written = generate(model, prompts, renderer, max_new_tokens=comparison.adapted.max_new_tokens)
    assert [one.prediction for one in comparison.adapted.records] == [one.text for one in written]
    with base_of(model) as base:
        assert base is trained


def test_progress_names_the_side(adapted, rows, renderer):
    seen = []
    with_base(adapted, rows, renderer, progress=lambda *call: seen.append(call))
    names = list(dict.fromkeys(name for name, _, _ in seen))
    assert names == ["adapted likelihood", "adapted generation", "base likelihood", "base generation"]


def test_references_are_all_measured_for_the_limit(trained, learned_rows, renderer):
    row = replace(learned_rows[0], references=("Lima", "L" * 39))
    assert evaluate_rows(trained, [row, learned_rows[1]], renderer).max_new_tokens == 68  # 1.5 times 40, and 8
