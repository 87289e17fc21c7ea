"""Multiple choice against scoring each choice alone; one prompt a question."""

from __future__ import annotations

import json

import pytest
import torch

from budwood.data.problems import Origin
from budwood.errors import DataError
from budwood.evals import multiple_choice
from budwood.evals.multiple_choice import Question, answer_questions, read_questions
from tests import tiny
from tests.methods.idp.banks import make_bank, plain_logits

QUESTIONS = [
    Question(text, choices, answer, task, Origin("q.jsonl", line))
    for line, (text, choices, answer, task) in enumerate(
        [
            ("the sky is", ("blue", "a long red sentence", "on"), 0, "colours"),
            ("two and two make", ("four", "five"), 0, "sums"),
            ("grass is", ("green", "grey", "no"), 1, "colours"),
            ("one less one is", ("x", "zero"), 1, "sums"),
        ],
        start=1,
    )
]
TOKENIZER = tiny.tokenizer()


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def naive(logits_of, question: Question) -> list[float]:
    found = []
    for choice in question.choices:
        asked, said = ids(question.text), ids(f" {choice}")
        log_p = logits_of(asked + said).double().log_softmax(-1)
        found.append(-sum(float(log_p[len(asked) + i - 1, token]) for i, token in enumerate(said)))
    return found


def test_the_likeliest_choice_is_the_answer_by_sum_and_by_character():
    model = tiny.llama()

    @torch.no_grad()
    def logits(row: list[int]) -> torch.Tensor:
        return model(torch.tensor([row])).logits[0]

    result = answer_questions(model, QUESTIONS, TOKENIZER, batch_size=3)
    for one, question in zip(result.answers, QUESTIONS, strict=True):
        nll = naive(logits, question)
        assert one.chosen == nll.index(min(nll))
        per = [a / len(choice) for a, choice in zip(nll, question.choices)]
        assert one.chosen_per_character == per.index(min(per))
    told = result.to_dict()
    right = [one.chosen == one.question.answer for one in result.answers]
    assert told["accuracy"] == sum(right) / 4
    assert told["by_task"] == {"colours": (right[0] + right[2]) / 2, "sums": (right[1] + right[3]) / 2}
    assert told["mean_of_tasks"] == pytest.approx(sum(told["by_task"].values()) / 2)


def test_a_bank_chooses_once_a_question_and_scores_all_choices_behind_that_prompt(tmp_path, monkeypatch):
    bank = make_bank(tmp_path)
    seen: list[list[int]] = []
    real = multiple_choice.likelihoods

    def spied(*arguments, **options):
        seen.append(options["selections"])
        return real(*arguments, **options)

    monkeypatch.setattr(multiple_choice, "likelihoods", spied)
    result = answer_questions(bank, QUESTIONS, TOKENIZER)
    alone = [int(bank.select(torch.tensor([ids(question.text)])).selection[0]) for question in QUESTIONS]
    assert seen == [[number for number, q in zip(alone, QUESTIONS) for _ in q.choices]]
    for one, question, number in zip(result.answers, QUESTIONS, alone, strict=True):
        nll = naive(lambda row, number=number: plain_logits(bank, number, row), question)
        assert one.chosen == nll.index(min(nll))


def test_questions_are_read_with_the_answer_as_number_or_text(tmp_path):
    rows = [
        {"question": "q", "choices": ["a", "b"], "answer": 1, "task": "t"},
        {"question": "q", "choices": ["a", "b"], "answer": "a"},
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(one.answer, one.task) for one in read_questions(tmp_path / "q.jsonl")] == [(1, "t"), (0, "")]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"question": "q", "choices": ["a"], "answer": 0}, "no question with choices"),
        ({"question": 3, "choices": ["a", "b"], "answer": 0}, "no question with choices"),
        ({"question": "q", "choices": ["a", "b"], "answer": 2}, "none of the choices"),
        ({"question": "q", "choices": ["a", "b"], "answer": True}, "none of the choices"),
        ({"question": "q", "choices": ["a", "b"], "answer": "c"}, "none of the choices"),
    ],
)
def test_rows_that_are_no_questions_are_named(tmp_path, row, text):
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=text) as caught:
        list(read_questions(tmp_path / "q.jsonl"))
    assert "line 1" in str(caught.value)
