"""What the missing cells will cost, said before they are computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .arms import Arm
from .facts import Facts

NOMINAL_MS = (
    1.3  # CPU milliseconds a token and epoch, probes included: SmolLM2-135M, bf16, one core, lower layers kept
)
NOMINAL_SCORER_S = 150.0  # CPU seconds to train a scorer of 300 facts, once


def tokens_of(facts: Facts) -> int:
    """Return the count of tokens that an epoch goes through."""
    return sum(len(passage.spans) for passage in facts.passages)


def cost(
    cells: Sequence[tuple[Arm, int]], facts: Facts, epochs: int, done: Iterable[Mapping[str, Any]]
) -> tuple[int, float]:
    """Return how many tokens the cells train on, and about how many CPU minutes that takes.

    Args:
        cells: (arm, seed) that are missing.
        epochs: of an arm that does not say.
        done: finished cells of the same table, whose times are taken where there are any.
    """
    ms = [1000 * line["training_cpu_s"] / (line["tokens"] * line["looks"][-1]["epoch"]) for line in done]
    rate = sum(ms) / len(ms) if ms else NOMINAL_MS
    tokens = sum(tokens_of(facts) * (arm.epochs or epochs) for arm, _ in cells)
    scorers = {repr(arm.weights) for arm, _ in cells if not isinstance(arm.weights, str)}
    return tokens, (tokens * rate / 1000 + len(scorers) * NOMINAL_SCORER_S) / 60
