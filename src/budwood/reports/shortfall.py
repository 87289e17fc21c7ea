"""Whether a run's result is any better than its base on text that was held out: the one line that says it is not.

A run that went through is no success where the base without it does as well. The figures are those of metrics.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from budwood._texts import shown


def shortfall(metrics: Mapping[str, Any]) -> str | None:
    """Return in one line how the result falls short of the base, with what may help; None where it is better.

    None, too, where nothing was held out to tell by, and before a run is done.
    """
    if metrics.get("choice"):
        return _of_prompts(metrics["choice"]["nll"])
    if metrics.get("recall"):
        return _of_documents(metrics["recall"])
    return _of_examples(metrics)


def _of_prompts(nll: Mapping[str, float]) -> str | None:
    if nll["chosen"] < nll["base"]:
        return None
    return (
        f"{_worse(nll['chosen'], nll['base'])} the model without prompts"
        f" ({_against(nll['chosen'], nll['base'])}): train longer or give more text"
    )


def _of_documents(recall: Mapping[str, Any]) -> str | None:
    if learned_something(recall):
        return None
    before, after = recall[recall["learned_by"]]["before"], recall[recall["learned_by"]]["after"]
    known = before["accuracy"] == 1
    help_ = "all of it was known before" if known else "train longer, or give text that the base cannot say"
    return (
        f"nothing new was learned ({before['accuracy']:.1%} of the answers' tokens right before, "
        f"{after['accuracy']:.1%} after; {shown(before['nll'])} and {shown(after['nll'])} nats a token): {help_}"
    )


def learned_something(recall: Mapping[str, Any]) -> bool:
    """Whether a model learned from documents: more tokens of the answers are right, or of as many they are likelier.

    Where all were right before there was nothing to learn.
    """
    before, after = recall[recall["learned_by"]]["before"], recall[recall["learned_by"]]["after"]
    if after["accuracy"] == before["accuracy"] < 1:
        return bool(after["nll"] < before["nll"])
    return bool(after["accuracy"] > before["accuracy"])


def _of_examples(metrics: Mapping[str, Any]) -> str | None:
    base, best = metrics.get("base_evaluation_loss"), metrics.get("best_evaluation_loss")
    if base is None or best is None or best < base:
        return None
    return (
        f"{_worse(best, base)} the base on the rows that were held out ({_against(best, base)}):"
        " train longer, try another training.learning_rate, or give more rows"
    )


def _worse(result: float, base: float) -> str:
    return "worse than" if result > base else "no better than"


def _against(result: float, base: float) -> str:
    """Return both with as many digits as tell them apart."""
    digits = next((n for n in range(4, 9) if f"{result:.{n}g}" != f"{base:.{n}g}"), 8)
    return f"{result:.{digits}g} against {base:.{digits}g} nats a token"
