"""The systems of the table: each makes a model from a setting and a seed, and says how many numbers it has learned."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from budwood import peft
from budwood.data.settings import DataSettings
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.domains import Division
from budwood.methods.idp.runtime import Prompt
from budwood.methods.idp.settings import BankSettings
from budwood.methods.idp.training import PromptTraining
from budwood.training.folder import RunFolder
from budwood.tuning.attach import attach, count_parameters
from budwood.tuning.lesson import Order
from budwood.tuning.registry import find_tuner

from .attempt import Attempt
from .setting import Setting, without_held_out

CONTEXTS = 90  # on which selectors are calibrated
SELECTORS = ("likelihood", "attention", "router", "paper")


@dataclass(frozen=True, eq=False)
class Made:
    """A system ready to be scored.

    Attributes:
        model: what answers.
        parameters: numbers learned.
        rate: the learning rate; None where nothing is trained.
        banks: for a bank: the same prompts behind each selector, by its name.
    """

    model: nn.Module
    parameters: int
    rate: float | None = None
    banks: Mapping[str, PromptBank] | None = None


def uncompressed(setting: Setting, seed: int) -> Made:
    """The model before it was compressed: the ceiling that repair aims at."""
    return Made(setting.uncompressed.model, 0)


def compressed(setting: Setting, seed: int) -> Made:
    """The compressed model as it is."""
    return Made(setting.compressed.model, 0)


def bank(setting: Setting, seed: int) -> Made:
    """A prompt for each domain, and all selectors."""
    prompts, rate = train_prompts(setting, setting.division, setting.sizes.tokens, setting.sizes.steps, seed)
    return _bank(setting, prompts, rate)


def bank_uncompressed(setting: Setting, seed: int) -> Made:
    """The bank's prompts on the uncompressed model: what they gain there is adaptation to the text, not repair."""
    made = bank(setting, seed)
    return replace(made, model=PromptBank(setting.uncompressed.model, made.model.prompts), banks=None)


def concatenated(setting: Setting, seed: int) -> Made:
    """All prompts of the bank one behind the other."""
    made = bank(setting, seed)
    prompts = made.model.prompts
    vectors = torch.cat([one.vectors for one in prompts])
    return Made(_alone(setting, Prompt("all", vectors, prompts[0].config)), made.parameters, made.rate)


def attempt(setting: Setting, seed: int) -> Made:
    """A learned soft mixture of the bank's prompts."""
    sources = [one.vectors for one in bank(setting, seed).model.prompts]
    make = partial(Attempt, setting.compressed.model, sources)
    return _trained(setting, "attempt", make, around=1e-3, seed=seed)


def mixed(setting: Setting, seed: int, *, all_tokens: bool) -> Made:
    """One prompt for all text: as long as the longest of the bank, or as all of them, on the bank's total tokens."""
    domains = setting.division.domains
    one = Division((replace(domains[0], name="mixed", train=setting.mixture, held_out=[]),), setting.division.report)
    tokens = setting.sizes.tokens * (len(domains) if all_tokens else 1)
    prompts, rate = train_prompts(setting, one, tokens, setting.total_steps, seed)
    return Made(_alone(setting, prompts[0]), prompts[0].vectors.numel(), rate)


def tuner(setting: Setting, seed: int, *, name: str, **settings: Any) -> Made:
    """Another tuner on all text."""
    peft.register()
    chosen = find_tuner(name)

    def make(start: int) -> nn.Module:
        base = copy.deepcopy(setting.compressed.model)
        return attach(base, chosen, chosen.settings(**settings), seed=start)

    return _trained(setting, f"{name} {settings}", make, around=chosen.learning_rate, seed=seed)


SYSTEMS: dict[str, Callable[[Setting, int], Made]] = {
    "uncompressed": uncompressed,
    "compressed": compressed,
    "bank": bank,
    "bank on uncompressed": bank_uncompressed,
    "concatenated": concatenated,
    "mixed, max n": partial(mixed, all_tokens=False),
    "mixed, sum n": partial(mixed, all_tokens=True),
    "attempt": attempt,
    "prefix": partial(tuner, name="prefix"),
    **{f"lora r={r}": partial(tuner, name="lora", rank=r, alpha=36, targets=["q", "v"]) for r in (2, 3, 4)},
    "gift r=2": partial(tuner, name="gift", rank=2),
}
UNTRAINED = ("uncompressed", "compressed")  # one seed is all seeds


def train_prompts(
    setting: Setting, division: Division, tokens: int, steps: int, seed: int
) -> tuple[list[Prompt], float]:
    """Train a prompt for each domain as `budwood adapt --repair` does, without looking at what is scored.

    What is trained lies in the work folder: several systems use the prompts of one bank, and a stopped one goes on.
    """
    chosen = find_tuner("prompt")
    order = Order(
        source=setting.compressed.source,
        files=(),
        tuner=chosen,
        tuner_settings=chosen.settings(tokens=tokens),
        learner=None,
        data=DataSettings(),
        training=setting.settings(chosen.learning_rate, steps),
        seed=1000 * seed,
    )
    settings = BankSettings(search_steps=setting.sizes.search_steps)
    clean = without_held_out(division)
    names = "+".join(one.name for one in clean.domains)
    folder = RunFolder(setting.work / setting.name / f"{names}-{tokens}-seed-{seed}")
    pad = setting.compressed.tokenizer.pad_token_id
    training = PromptTraining(order, settings, setting.compressed, folder, pad, progress=False, resume=True)
    rate, _ = training.find_rate(clean)
    trained = [training.train_prompt(domain, number, rate) for number, domain in enumerate(clean.domains)]
    return [one.prompt for one in trained], rate


def _bank(setting: Setting, prompts: list[Prompt], rate: float) -> Made:
    contexts = [row.input_ids[: len(row.input_ids) // 2] for row in setting.mixture[:CONTEXTS]]
    banks = {name: PromptBank(setting.compressed.model, prompts, selector=name) for name in SELECTORS}
    for one in banks.values():
        one.calibrate(contexts)
    return Made(banks["likelihood"], sum(one.vectors.numel() for one in prompts), rate, banks)


def _alone(setting: Setting, prompt: Prompt) -> PromptBank:
    return PromptBank(setting.compressed.model, [prompt])


def _trained(setting: Setting, name: str, make: Callable[[int], nn.Module], *, around: float, seed: int) -> Made:
    rate = setting.best_rate(name, make, around)
    model = make(1000 * seed)
    setting.learn(model, setting.mixture, rate, setting.total_steps, 1000 * seed)
    return Made(model.eval(), count_parameters(model), rate)
