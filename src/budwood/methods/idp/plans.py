"""Which trainings make a bank, how many steps each takes, and what share of the run each is."""

from __future__ import annotations

import itertools

from budwood.methods.idp.domains import Division
from budwood.methods.idp.settings import BankSettings
from budwood.training.plan import Plan
from budwood.training.progress import Part
from budwood.tuning.lesson import Order
from budwood.tuning.protocol import TunerSettings

SEARCH, COMMON, PROMPTS = "search", "common", "prompts"  # folders of trainings in a run
SHARE = 0.25  # of the training's steps that all trials of learning rates may take together
FEWEST, MOST = 5, 20  # steps of a trial; the loss after fewer says nothing about a rate


def prompt_settings(order: Order, settings: BankSettings, number: int) -> TunerSettings:
    """Return the tuner's settings for prompt `number`, which may have a length of its own."""
    if not settings.lengths:
        return order.tuner_settings
    return order.tuner_settings.model_copy(update={"tokens": settings.lengths[number]})


def longest_settings(order: Order, settings: BankSettings) -> TunerSettings:
    """Return the tuner's settings for the common prompt, which is as long as the longest of all."""
    if not settings.lengths:
        return order.tuner_settings
    return order.tuner_settings.model_copy(update={"tokens": max(settings.lengths)})


def stages(order: Order, settings: BankSettings, division: Division) -> list[int]:
    """Return the steps of the common prompt (0: there is none) and then those of each domain's own training.

    In all they are those of prompts that are trained alone.
    """
    alone = [
        Plan(order.training, len(one.train), order.seed + i).total_steps for i, one in enumerate(division.domains)
    ]
    common = round(settings.common * sum(alone)) if len(alone) > 1 else 0
    own = [max(1, round((1 - settings.common) * steps)) for steps in alone] if common else alone
    return [common, *own]


def rates_of(order: Order, settings: BankSettings) -> list[float]:
    """Return the learning rates that are tried; a single one is taken without a trial."""
    highest = order.training.learning_rate or order.tuner.learning_rate
    return [factor * highest for factor in settings.search] or [highest]


def trial_steps(order: Order, settings: BankSettings, division: Division) -> int:
    """Return the steps of each trial of a learning rate, or 0 where there is none."""
    trials = len(settings.search)
    if trials < 2:
        return 0
    if settings.search_steps is not None:
        return settings.search_steps
    fitting = int(SHARE * sum(stages(order, settings, division)) / trials)
    return min(MOST, fitting) if fitting >= FEWEST else 0


def planned(order: Order, settings: BankSettings, division: Division) -> list[Plan]:
    """Return the plans of all trainings, trials first."""
    steps = trial_steps(order, settings, division)
    short = order.training.model_copy(update={"max_steps": steps})
    mixed = sum(len(one.train) for one in division.domains)
    trials = [Plan(short, mixed, order.seed)] * (len(settings.search) if steps else 0)
    common, *own = stages(order, settings, division)
    first = [_plan(order, mixed, 0, common)] if common else []
    own_steps = own if common else [None] * len(own)
    return (
        trials
        + first
        + [
            _plan(order, len(one.train), number, count)
            for number, (one, count) in enumerate(zip(division.domains, own_steps))
        ]
    )


def _plan(order: Order, rows: int, number: int, steps: int | None) -> Plan:
    training = order.training if steps is None else order.training.model_copy(update={"max_steps": steps})
    return Plan(training, rows, order.seed + number)


def parts_of(order: Order, settings: BankSettings, division: Division) -> dict[tuple[str, str], Part]:
    """Return each training as a part of the run's progress, by the folder and the name of its place."""
    rates = [f"{rate:g}" for rate in rates_of(order, settings)] if trial_steps(order, settings, division) else []
    names = [one.name for one in division.domains]
    trials = [
        ((SEARCH, rate), f"trial {i} of {len(rates)}, learning rate {rate}") for i, rate in enumerate(rates, start=1)
    ]
    prompts = [((PROMPTS, name), f"prompt {i} of {len(names)}, {name}") for i, name in enumerate(names, start=1)]
    common = [((COMMON, "all"), "what all prompts have in common")] if stages(order, settings, division)[0] else []
    steps = [plan.total_steps for plan in planned(order, settings, division)]
    before = [0, *itertools.accumulate(steps)]
    return {key: Part(words, before[i], before[-1]) for i, (key, words) in enumerate(trials + common + prompts)}
