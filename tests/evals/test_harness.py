"""A model as lm-eval takes it: its requests against plain forward passes, and a whole task of local data.

lm-eval itself is needed for the last test only; what it asks is answered by `_Answers`.
"""

from __future__ import annotations

import importlib.util
import json
from types import SimpleNamespace

import pytest
import torch
import yaml

from budwood.data.render import Renderer
from budwood.errors import NotSupportedError
from budwood.evals.harness import _Answers, lm_eval_model
from tests import tiny
from tests.methods.idp.banks import make_bank, plain_greedy, plain_logits

RENDERER = Renderer(tiny.tokenizer(), "plain")
PAIRS = [("the sky is", " blue"), ("the sky is", " a court"), ("two", " and two"), ("", "alone")]


def asked(*pairs) -> list[SimpleNamespace]:
    return [SimpleNamespace(args=pair) for pair in pairs]


def ids(text: str) -> list[int]:
    return RENDERER.tokenizer(text, add_special_tokens=False)["input_ids"]


def naive(logits_of, context: str, continuation: str) -> tuple[float, bool]:
    given, said = ids(context) or [256], ids(continuation)
    log_p = logits_of(given + said).double().log_softmax(-1)[len(given) - 1 : -1]
    greedy = log_p.argmax(-1).tolist() == said
    return sum(float(log_p[i, token]) for i, token in enumerate(said)), greedy


@torch.no_grad()
def plain(row: list[int]) -> torch.Tensor:
    return tiny.llama()(torch.tensor([row])).logits[0]


def test_likelihoods_are_those_of_the_definition():
    found = _Answers(tiny.llama(), RENDERER, 2).loglikelihood(asked(*PAIRS))
    for (value, greedy), pair in zip(found, PAIRS, strict=True):
        wanted = naive(plain, *pair)
        assert value == pytest.approx(wanted[0], abs=1e-3) and greedy is wanted[1]


def test_a_bank_chooses_once_a_context_from_the_context_alone(tmp_path):
    bank = make_bank(tmp_path)
    pairs = PAIRS[:3]
    found = _Answers(bank, RENDERER, "auto").loglikelihood(asked(*pairs))
    for (value, _), (context, continuation) in zip(found, pairs, strict=True):
        number = int(bank.select(torch.tensor([ids(context)])).selection[0])
        wanted = naive(lambda row, number=number: plain_logits(bank, number, row), context, continuation)
        assert value == pytest.approx(wanted[0], abs=1e-3)
    assert bank.histogram().rows == 2 + 3  # two contexts, and what this test selects itself


def test_a_whole_text_is_scored_over_the_borders_of_its_windows(monkeypatch):
    model = tiny.llama(max_position_embeddings=8)
    text = "a text that needs some windows"
    (found,) = _Answers(model, RENDERER, "auto").loglikelihood_rolling(asked((text,)))
    row, wanted = [256, *ids(text)], 0.0
    for at in range(0, len(row) - 1, 7):
        part = row[at : at + 8]
        with torch.no_grad():
            log_p = model(torch.tensor([part])).logits[0].double().log_softmax(-1)
        wanted += sum(float(log_p[t - 1, part[t]]) for t in range(1, len(part)))
    assert found == pytest.approx(wanted, abs=1e-3)


def test_a_bank_refuses_to_score_what_it_would_have_to_choose_by(tmp_path):
    with pytest.raises(NotSupportedError, match="nothing is given"):
        _Answers(make_bank(tmp_path), RENDERER, "auto").loglikelihood_rolling(asked(("text",)))


def test_what_is_written_ends_before_the_first_stop_text(tmp_path):
    bank = make_bank(tmp_path)
    chosen = int(bank.select(torch.tensor([ids("abc")])).selection[0])
    whole = RENDERER.decode(plain_greedy(bank, chosen, ids("abc"), 6))
    answers = _Answers(bank, RENDERER, "auto")
    assert answers.generate_until(asked(("abc", {"max_gen_toks": 6, "until": []}))) == [whole]
    stop = whole[2]
    found = answers.generate_until(asked(("abc", {"max_gen_toks": 6, "until": ["never", stop]})))
    assert found == [whole[: whole.index(stop)]]


def test_without_lm_eval_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.api.model", None)
    with pytest.raises(NotSupportedError, match="lm-eval is not installed") as caught:
        lm_eval_model(tiny.llama(), RENDERER)
    assert "pip install" in caught.value.action


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="needs lm-eval")
def test_a_task_of_local_data(tmp_path):
    import lm_eval
    from lm_eval.tasks import TaskManager

    rows = [{"question": f"q{i}", "choices": ["yes", "no", "a longer one"], "gold": i % 3} for i in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "local_choice",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "local.yaml").write_text(yaml.safe_dump(task))
    bank = make_bank(tmp_path / "bank")
    found = lm_eval.simple_evaluate(
        model=lm_eval_model(bank, RENDERER),
        tasks=["local_choice"],
        task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False),
        bootstrap_iters=0,
    )
    right = 0
    for row in rows:
        number = int(bank.select(torch.tensor([ids(row["question"])])).selection[0])
        scores = [
            naive(lambda r, number=number: plain_logits(bank, number, r), row["question"], f" {choice}")[0]
            for choice in row["choices"]
        ]
        right += scores.index(max(scores)) == row["gold"]
    assert found["results"]["local_choice"]["acc,none"] == pytest.approx(right / len(rows))
