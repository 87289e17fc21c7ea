"""The systems of the table: each makes a model from a setting and a seed, and says how many numbers it has learned."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from budwood import peft
from budwood.data.settings import DataSettings
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.domains import Division
from budwood.methods.idp.runtime import Prompt
from budwood.methods.idp.selectors import AttentionSelector, Selector
from budwood.methods.idp.settings import BankSettings
from budwood.methods.idp.training import PromptTraining
from budwood.training.folder import RunFolder
from budwood.tuning.attach import attach, count_parameters
from budwood.tuning.lesson import Order
from budwood.tuning.registry import find_tuner

from .._table import digest
from .attempt import Attempt
from .kept import keep, restore
from .setting import Setting, without_held_out

PAPER_LENGTHS = (26, 50, 100)
CONTEXTS = 90  # on which selectors are calibrated


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


def bank(setting: Setting, seed: int, *, common: float = 0.5) -> Made:
    """A prompt for each domain, and all selectors; with `common` 0 each prompt is trained alone."""
    sizes = setting.sizes
    prompts, rate = train_prompts(setting, setting.division, sizes.tokens, sizes.steps, seed, common)
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
    tokens = setting.sizes.tokens * (len(setting.division.domains) if all_tokens else 1)
    prompts, rate = train_prompts(setting, _mixture(setting, "mixed"), tokens, setting.total_steps, seed)
    return Made(_alone(setting, prompts[0]), prompts[0].vectors.numel(), rate)


def paper_lengths(setting: Setting, seed: int) -> Made:
    """The paper's bank: prompts that differ in length only, each trained on all text; all selectors."""
    trained = [
        train_prompts(setting, _mixture(setting, f"mixed{n}"), n, setting.sizes.steps, seed) for n in PAPER_LENGTHS
    ]
    return _bank(setting, [prompts[0] for prompts, _ in trained], trained[-1][1])


def tuner(setting: Setting, seed: int, *, name: str, repair: bool = True, **settings: Any) -> Made:
    """Another tuner on all text.

    Args:
        repair: whether the compressed model is adapted, or the uncompressed one: what is gained there is adaptation.
    """
    peft.register()
    chosen, adapted = find_tuner(name), setting.compressed if repair else setting.uncompressed

    def make(start: int) -> nn.Module:
        return attach(copy.deepcopy(adapted.model), chosen, chosen.settings(**settings), seed=start)

    return _trained(setting, f"{name} {settings} {repair}", make, around=chosen.learning_rate, seed=seed)


SYSTEMS: dict[str, Callable[[Setting, int], Made]] = {
    "uncompressed": uncompressed,
    "compressed": compressed,
    "bank": bank,
    "apart": partial(bank, common=0.0),
    "bank on uncompressed": bank_uncompressed,
    "concatenated": concatenated,
    "mixed, max n": partial(mixed, all_tokens=False),
    "mixed, sum n": partial(mixed, all_tokens=True),
    "attempt": attempt,
    "paper's lengths": paper_lengths,
    "prefix": partial(tuner, name="prefix"),
    **{f"lora r={r}": partial(tuner, name="lora", rank=r, alpha=36, targets=["q", "v"]) for r in (2, 3, 4)},
    "lora r=2 on uncompressed": partial(tuner, name="lora", repair=False, rank=2, alpha=36, targets=["q", "v"]),
    "gift r=2": partial(tuner, name="gift", rank=2),
}
UNTRAINED = ("uncompressed", "compressed")  # one seed is all seeds


def train_prompts(
    setting: Setting, division: Division, tokens: int, steps: int, seed: int, common: float = 0.5
) -> tuple[list[Prompt], float]:
    """Train a prompt for each domain as `budwood adapt --repair` does, without looking at what is scored.

    Args:
        steps: of each prompt where all are trained alone; a common prompt takes a share `common` of them all.

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
    settings = BankSettings(search_steps=setting.sizes.search_steps, common=common)
    clean = without_held_out(division)
    names = "+".join(one.name for one in clean.domains)
    folder = RunFolder(setting.work / setting.name / f"{names}-{tokens}-common-{common:g}-seed-{seed}")
    pad = setting.compressed.tokenizer.pad_token_id
    training = PromptTraining(order, settings, setting.compressed, folder, pad, progress=False, resume=True)
    rate, _ = training.find_rate(clean)
    return [one.prompt for one in training.train_all(clean, rate)[1]], rate


def selectors(model: PreTrainedModel) -> dict[str, str | Selector]:
    """Return the selectors that are compared, by the name that the table gives them."""
    third = tuple(range(math.ceil(model.config.get_text_config().num_hidden_layers / 3)))
    return {
        **{name: name for name in ("likelihood", "attention", "router", "paper")},
        "attention, lower third": AttentionSelector(layers=third),
        "attention, z": AttentionSelector(normalise="z"),
    }


def _mixture(setting: Setting, name: str) -> Division:
    """Return all text as one domain."""
    first = setting.division.domains[0]
    return Division((replace(first, name=name, train=setting.mixture, held_out=[]),), setting.division.report)


def _bank(setting: Setting, prompts: list[Prompt], rate: float) -> Made:
    contexts = [row.input_ids[: len(row.input_ids) // 2] for row in setting.mixture[:CONTEXTS]]
    model = setting.compressed.model
    banks = {name: PromptBank(model, prompts, selector=one) for name, one in selectors(model).items()}
    for one in banks.values():
        one.calibrate(contexts)
    return Made(banks["likelihood"], sum(one.vectors.numel() for one in prompts), rate, banks)


def _alone(setting: Setting, prompt: Prompt) -> PromptBank:
    return PromptBank(setting.compressed.model, [prompt])


def _trained(setting: Setting, name: str, make: Callable[[int], nn.Module], *, around: float, seed: int) -> Made:
    """Train on all text, or take what the work folder has kept of it."""
    path = setting.work / setting.name / f"{name.split()[0]}-{digest(name)[:8]}-seed-{seed}.safetensors"
    if path.is_file():
        model = make(1000 * seed)
        return Made(model.eval(), count_parameters(model), restore(path, model))
    rate = setting.best_rate(name, make, around)
    model = make(1000 * seed)
    setting.learn(model, setting.mixture, rate, setting.total_steps, 1000 * seed)
    keep(path, model, rate)
    return Made(model.eval(), count_parameters(model), rate)
