"""One training run and one evaluation: AdamW on packed rows, and teacher-forced scores.

The loss of a step is Σ nll / Σ 1 over the targets of its rows (`training.loss`). A seed decides the order of rows, the
same for all arms.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from budwood.data.render import Encoded
from budwood.training.loss import target_logits, weighted_nll

from .packing import Packed, group_size, pack
from .tasks import Question, Task

GROUP_ROWS = 10  # rows behind one beginning in evaluation
FORWARD_TOKENS = {"cpu": 512}  # tokens a forward pass in evaluation
FORWARD_TOKENS_ELSEWHERE = 16384

Groups = list[Sequence[Encoded]]


@dataclass(frozen=True)
class Schedule:
    """How a run goes. The defaults are those of all tables.

    Attributes:
        steps: optimiser steps.
        tasks_per_step: tasks in a step.
        rows_per_task: rows of each of them.
        warmup: steps over which the learning rate rises.
        floor: what is left of the learning rate at the end of its linear fall.
        betas: of AdamW; there is no weight decay.
        max_grad_norm: gradients are clipped to this norm.
    """

    steps: int
    tasks_per_step: int = 4
    rows_per_task: int = 4
    warmup: int = 5
    floor: float = 0.05
    betas: tuple[float, float] = (0.9, 0.99)
    max_grad_norm: float = 1.0

    def factor(self, step: int) -> float:
        """Return the part of the learning rate that the step (from 0) uses."""
        rise = (step + 1) / self.warmup
        fall = 1 - (1 - self.floor) * max(0, step - self.warmup) / max(1, self.steps - self.warmup)
        return min(rise, fall)


@dataclass(frozen=True)
class Training:
    """What a run did.

    Attributes:
        losses: nats a token, one a step; shorter than planned if the last is not finite.
        tokens: computed in all.
        seconds: taken, by the clock.
        cpu_seconds: taken of all cores together; on a busy machine the fairer of the two.
    """

    losses: list[float]
    tokens: int
    seconds: float
    cpu_seconds: float

    @property
    def diverged(self) -> bool:
        return bool(self.losses) and not math.isfinite(self.losses[-1])


@dataclass(frozen=True)
class Score:
    """One question.

    Attributes:
        exact: whether an accepted answer, its end token included, is what greedy decoding writes.
        answered: the same without the end token.
        nll: of the answer that is learned, in nats.
        tokens: of that answer, the end token included.
    """

    exact: bool
    answered: bool
    nll: float
    tokens: int


def step_groups(tasks: Sequence[Task], schedule: Schedule, seed: int) -> Iterator[Groups]:
    """Yield the rows of each step: every task comes once before any comes again, and so does every row of a task."""
    rng = random.Random(seed)
    queue: list[Task] = []
    rows: dict[str, list[Encoded]] = {task.name: [] for task in tasks}
    for _ in range(schedule.steps):
        groups: Groups = []
        for _ in range(min(schedule.tasks_per_step, len(tasks))):
            queue = queue or rng.sample(tasks, len(tasks))
            task = queue.pop()
            if len(rows[task.name]) < schedule.rows_per_task:
                rows[task.name] = rng.sample(task.train, len(task.train))
            groups.append([rows[task.name].pop() for _ in range(min(schedule.rows_per_task, len(task.train)))])
        yield groups


def learn(model: nn.Module, tasks: Sequence[Task], schedule: Schedule, learning_rate: float, seed: int) -> Training:
    """Train what requires gradients in `model`; stop at the first loss that is not finite."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=learning_rate, betas=schedule.betas, weight_decay=0.0)
    losses: list[float] = []
    tokens, start, cpu_start = 0, time.perf_counter(), time.process_time()
    model.train()
    for step, groups in enumerate(step_groups(tasks, schedule, seed)):
        packed = _pack(model, groups)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * schedule.factor(step)
        total, weight = weighted_nll(model, packed.batch)
        loss = total / weight
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, schedule.max_grad_norm)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
        tokens += packed.tokens
        if not math.isfinite(losses[-1]):
            break
    model.eval()
    return Training(losses, tokens, time.perf_counter() - start, time.process_time() - cpu_start)


@torch.no_grad()
def judge(model: nn.Module, tasks: Sequence[Sequence[Question]]) -> tuple[list[Score], int]:
    """Return the score of each question, in order, and how many tokens were computed.

    Args:
        tasks: the questions of each task; those of one task share its definition.
    """
    found: list[tuple[bool, bool, float, int]] = []
    tokens = 0
    model.eval()
    for groups in forward_groups(tasks, _forward_tokens(model)):
        packed = _pack(model, groups)
        found += _answer_scores(model, packed, sum(map(len, groups)))
        tokens += packed.tokens
    answers = iter(found)
    return [_best([next(answers) for _ in question.answers]) for task in tasks for question in task], tokens


def forward_groups(tasks: Sequence[Sequence[Question]], budget: int) -> Iterator[Groups]:
    """Yield the groups of each forward pass: all answers of all tasks, in order, about `budget` tokens at a time."""
    waiting: Groups = []
    for questions in tasks:
        answers = [answer for question in questions for answer in question.answers]
        for first in range(0, len(answers), GROUP_ROWS):
            waiting.append(answers[first : first + GROUP_ROWS])
            if sum(map(group_size, waiting)) >= budget:
                yield waiting
                waiting = []
    if waiting:
        yield waiting


def evaluation_tokens(tasks: Iterable[Sequence[Question]]) -> int:
    """Return how many tokens `judge` computes."""
    return sum(group_size(group) for groups in forward_groups(list(tasks), 0) for group in groups)


def _answer_scores(model: nn.Module, packed: Packed, count: int) -> list[tuple[bool, bool, float, int]]:
    """(exact, exact but for the end token, nats, tokens) of each answer."""
    logits, targets = target_logits(model, packed.batch)
    nll = nn.functional.cross_entropy(logits.float(), targets.ids, reduction="none").cpu()
    right = (logits.argmax(dim=-1) == targets.ids).cpu()
    scores = []
    for index in range(count):
        own = packed.owners == index
        mine = right[own]
        scores.append((bool(mine.all()), bool(mine[:-1].all()), float(nll[own].sum()), len(mine)))
    return scores


def _best(answers: Sequence[tuple[bool, bool, float, int]]) -> Score:
    exact, answered, _, _ = zip(*answers)
    return Score(any(exact), any(answered), *answers[0][2:])


def _pack(model: nn.Module, groups: Groups) -> Packed:
    """No sequence is longer than the longest group: attention costs the square of the length."""
    parameter = next(model.parameters())
    return pack(groups, max(map(group_size, groups)), parameter.dtype).to(parameter.device)


def _forward_tokens(model: nn.Module) -> int:
    return FORWARD_TOKENS.get(next(model.parameters()).device.type, FORWARD_TOKENS_ELSEWHERE)
