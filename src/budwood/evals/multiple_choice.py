"""Multiple choice by likelihood: the choice that the model finds likeliest after the question is its answer.

A `Prompted` model chooses its prompt once a question, from the question alone, and all choices are scored behind it:
scored behind different prompts, their likelihoods would not compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase

from budwood.data.files import read_records
from budwood.data.problems import LocatedError, Origin
from budwood.data.render import UNTRAINED, Encoded
from budwood.data.tokens import TokenIds
from budwood.evals._running import BatchSize, Progress
from budwood.evals.likelihood import likelihoods, select_prompts
from budwood.tuning.soft_prompts import Prompted

EXAMPLE = '{"question": "2 + 2 =", "choices": ["3", "4"], "answer": 1}'


@dataclass(frozen=True)
class Question:
    """A question with its choices.

    Attributes:
        text: all that comes before a choice; a space is put between them.
        choices: at least two.
        answer: the number of the right one.
        task: the name of its task, or "".
        origin: file and line.
    """

    text: str
    choices: tuple[str, ...]
    answer: int
    task: str
    origin: Origin


@dataclass(frozen=True)
class Answered:
    """What a model answers.

    Attributes:
        chosen: the likeliest choice by the sum over its tokens.
        chosen_per_character: the likeliest by that sum over its characters, which favours no short choice.
    """

    question: Question
    chosen: int
    chosen_per_character: int

    @property
    def right(self) -> bool:
        return self.chosen == self.question.answer

    @property
    def right_per_character(self) -> bool:
        return self.chosen_per_character == self.question.answer


@dataclass(frozen=True)
class ChoiceResult:
    """The answers to all questions, in order."""

    answers: tuple[Answered, ...]

    def accuracy(self, task: str | None = None) -> float:
        """Return the share of right answers, of one task or of all questions."""
        return float(np.mean([one.right for one in self._of(task)]))

    def to_dict(self) -> dict[str, Any]:
        """Return accuracies over all questions, by task, and the mean over tasks."""
        tasks = dict.fromkeys(one.question.task for one in self.answers)
        by_task = {task: self.accuracy(task) for task in tasks}
        return {
            "questions": len(self.answers),
            "accuracy": self.accuracy(),
            "accuracy_per_character": float(np.mean([one.right_per_character for one in self.answers])),
            "by_task": by_task,
            "mean_of_tasks": float(np.mean(list(by_task.values()))),
        }

    def _of(self, task: str | None) -> list[Answered]:
        return [one for one in self.answers if task is None or one.question.task == task]


def read_questions(path: str | Path) -> Iterator[Question]:
    """Read questions from a file of rows: `question`, `choices`, `answer` (a number from 0, or the choice), `task`.

    Raises:
        DataError: a row is no question; it names file and line.
    """
    for record in read_records(Path(path)):
        values = record.values
        text, choices, answer = (values.get(name) for name in ("question", "choices", "answer"))
        listed = isinstance(choices, list) and len(choices) > 1 and all(isinstance(one, str) for one in choices)
        if not isinstance(text, str) or not isinstance(choices, list) or not listed:
            raise LocatedError("the row is no question with choices", wanted=EXAMPLE, origin=record.origin)
        number = choices.index(answer) if answer in choices else answer
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(choices):
            raise LocatedError(
                f"the answer {answer!r} is none of the choices", wanted="its number from 0", origin=record.origin
            )
        yield Question(text, tuple(choices), number, str(values.get("task") or ""), record.origin)


def answer_questions(
    model: nn.Module,
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    *,
    batch_size: BatchSize = "auto",
    progress: Progress | None = None,
) -> ChoiceResult:
    """Let a model answer questions.

    Args:
        model: a causal language model, bare, a `PeftModel` or `Prompted`.
        questions: at least one.
        tokenizer: of the model.
        batch_size, progress: as in `likelihoods`.
    """
    rows = [list(_encoded(question, TokenIds(tokenizer))) for question in questions]
    selections = None
    if isinstance(model, Prompted):
        chosen = select_prompts(model, [choices[0] for choices in rows], batch_size=batch_size)
        selections = [int(number) for number, choices in zip(chosen, rows, strict=True) for _ in choices]
    flat = [row for choices in rows for row in choices]
    found = likelihoods(model, flat, batch_size=batch_size, selections=selections, progress=progress)
    nll = [one.nll for one in found]
    borders = pairwise(accumulate(map(len, rows), initial=0))
    answers = (_judged(question, nll[a:b]) for question, (a, b) in zip(questions, borders, strict=True))
    return ChoiceResult(tuple(answers))


def _encoded(question: Question, tokens: TokenIds) -> Iterator[Encoded]:
    """Yield the question with each of its choices, which alone is scored."""
    (asked,) = tokens.encode([question.text])
    for number, choice in enumerate(question.choices):
        said = tokens.continuation(f" {choice}")
        labels = [UNTRAINED] * len(asked) + said
        weights = [0.0] * len(asked) + [1.0] * len(said)
        yield Encoded(asked + said, labels, weights, question.origin, number)


def _judged(question: Question, nll: Sequence[float]) -> Answered:
    characters = np.array([max(1, len(choice)) for choice in question.choices])
    sums = np.array(nll)
    return Answered(question, int(sums.argmin()), int((sums / characters).argmin()))
