"""Which cells a table has, what they cost, and how one is computed."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch

import budwood.peft
from budwood.errors import UsageError
from budwood.models import Base
from budwood.tuning.attach import attach, count_parameters

from .._table import machine
from .arms import BASE, LEARNING_RATES, SEARCH_SEED, Arm
from .learning import Schedule, Training, evaluation_tokens, judge, learn, step_groups
from .packing import group_size
from .results import Cell, Table, pack_scores
from .tasks import Corpus, Question

FORWARD_SHARE = 0.5  # of a training step: the backward pass needs no gradients of the frozen weights
FACTS = ("python", "cpu", "torch_threads", "devices", "git")
TRIAL_STEPS = 2  # steps from which the speed is measured


@dataclass(frozen=True)
class Bench:
    """Everything the cells of a table share, in memory.

    Attributes:
        base: frozen; each cell adapts a copy, so that no arm can leave anything behind.
        corpus: the tasks.
        table: what decides the figures.
        schedules: by stage.
    """

    base: Base
    corpus: Corpus
    table: Table
    schedules: Mapping[str, Schedule]

    def questions(self, stage: str) -> dict[str, list[Sequence[Question]]]:
        """Return the sets of questions of a stage, by name, and in each the questions by task."""
        tasks = self.corpus.tasks
        if stage == "search":
            return {"selection": [task.selection for task in tasks]}
        return {
            "validation": [task.validation for task in tasks],
            "dev": [task.validation for task in self.corpus.dev],
        }

    def tokens(self, cells: Sequence[Cell]) -> tuple[int, int]:
        """Return how many tokens the cells train on (estimated from the order of one seed) and evaluate."""
        trained = evaluated = 0
        for stage, schedule in self.schedules.items():
            of_stage = [cell for cell in cells if cell.stage == stage]
            groups = itertools.chain.from_iterable(step_groups(self.corpus.tasks, schedule, SEARCH_SEED))
            trained += sum(map(group_size, groups)) * sum(cell.arm != BASE.name for cell in of_stage)
            evaluated += sum(map(evaluation_tokens, self.questions(stage).values())) * len(of_stage)
        return trained, evaluated


def search_cells(bench: Bench, arms: Sequence[Arm]) -> Iterator[Cell]:
    """Yield the trials of the learning rate, arm by arm."""
    for arm in arms:
        for rate in LEARNING_RATES if arm.tuner else ():
            yield Cell(bench.table.name, arm.name, resolved(arm), "search", rate, SEARCH_SEED)


def final_cells(bench: Bench, arms: Sequence[Arm], rates: Mapping[str, float], seeds: int) -> Iterator[Cell]:
    """Yield the final runs, seed by seed, of the arms whose learning rate is known.

    Args:
        rates: the learning rate of each arm.
        seeds: no arm gets more seeds.
    """
    for seed in range(1, seeds + 1):
        for arm in arms:
            if seed <= arm.seeds and (arm == BASE or arm.name in rates):
                yield Cell(bench.table.name, arm.name, resolved(arm), "final", rates.get(arm.name, 0.0), seed)


def chosen_rates(bench: Bench, arms: Sequence[Arm], done: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return, for each arm whose trials are all done, the rate with the lowest loss on the selection rows.

    Args:
        done: finished cells by key.
    """
    found = {}
    for arm in arms:
        trials = [done.get(cell.key) for cell in search_cells(bench, [arm])]
        losses = {
            trial["learning_rate"]: trial["selection"]["nll_per_token"]
            for trial in trials
            if trial is not None and not trial["diverged"]
        }
        if losses and None not in trials:
            found[arm.name] = min(losses, key=lambda rate: losses[rate])
    return found


def resolved(arm: Arm) -> dict[str, Any]:
    """Return all settings of the arm's tuner; {} for the base."""
    built = arm.build() if arm.tuner else "the base"
    return {} if isinstance(built, str) else built[1].model_dump(mode="json")


def compute(bench: Bench, arm: Arm, cell: Cell) -> dict[str, Any]:
    """Run one cell and return its line."""
    began, cpu_began = time.perf_counter(), time.process_time()
    model, parameters = _adapted(bench, arm, cell.seed)
    schedule = bench.schedules[cell.stage]
    trained = Training([], 0, 0.0, 0.0)
    if arm != BASE:
        trained = learn(model, bench.corpus.tasks, schedule, cell.learning_rate, cell.seed)
    line = {
        "key": cell.key,
        **vars(cell),
        "parameters": parameters,
        "diverged": trained.diverged,
        "train_tokens": trained.tokens,
        "tokens_per_s": round(trained.tokens / trained.seconds, 1) if trained.tokens else None,
        "losses": [round(loss, 4) for loss in trained.losses] if not trained.diverged else [],
    }
    if not trained.diverged:
        line |= _judged(model, bench.questions(cell.stage))
    return line | {
        "minutes": round((time.perf_counter() - began) / 60, 3),
        "cpu_minutes": round((time.process_time() - cpu_began) / 60, 3),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "common": bench.table.to_dict(),
        "machine": machine(*FACTS, packages=("torch", "transformers", "peft")),
    }


def _judged(model: torch.nn.Module, sets: Mapping[str, list[Sequence[Question]]]) -> dict[str, Any]:
    figures: dict[str, Any] = {"evaluated_tokens": 0}
    for name, tasks in sets.items():
        scores, tokens = judge(model, tasks)
        figures[name] = pack_scores(scores)
        figures["evaluated_tokens"] += tokens
    return figures


def _adapted(bench: Bench, arm: Arm, seed: int) -> tuple[torch.nn.Module, int]:
    if arm == BASE:
        return bench.base.model, 0
    built = arm.build()
    if isinstance(built, str):
        raise UsageError(f"the arm {arm.name} cannot be run: {built}")
    budwood.peft.register()
    model = attach(copy.deepcopy(bench.base.model), *built, seed=seed)
    return model, count_parameters(model)


def measure(bench: Bench, arm: Arm) -> Training:
    """Train an arm for two steps after one that warms up, and return what that took."""
    model, _ = _adapted(bench, arm, SEARCH_SEED)
    few = dataclasses.replace(bench.schedules["search"], steps=1)
    learn(model, bench.corpus.tasks, few, 1e-3, SEARCH_SEED)
    return learn(model, bench.corpus.tasks, dataclasses.replace(few, steps=TRIAL_STEPS), 1e-3, SEARCH_SEED)
