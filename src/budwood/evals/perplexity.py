"""Perplexity of a text in windows, each with a part that is given and a part that is scored.

What a model may adjust to, such as the choice of a soft prompt, it reads from the given part alone: a perplexity for
which the scored tokens had a say would be too low.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import nn

from budwood.data.problems import Origin
from budwood.data.render import Encoded
from budwood.data.scored import scored_from
from budwood.errors import DataError
from budwood.evals._running import BatchSize, Progress
from budwood.evals.likelihood import Likelihood, likelihoods


@dataclass(frozen=True, eq=False)
class Perplexity:
    """How likely the scored parts of n windows are.

    Attributes:
        window_nll: the sum over each window's scored tokens, in nats, (n,).
        window_tokens: how many those are, (n,).
    """

    window_nll: Float[np.ndarray, " n"]
    window_tokens: Int[np.ndarray, " n"]

    @classmethod
    def of(cls, found: Sequence[Likelihood]) -> Perplexity:
        """Sum up the likelihoods of windows."""
        return cls(np.array([one.nll for one in found]), np.array([one.tokens for one in found]))

    @property
    def tokens(self) -> int:
        """All scored tokens."""
        return int(self.window_tokens.sum())

    @property
    def nll(self) -> float:
        """Nats a token."""
        return float(self.window_nll.sum() / self.tokens)

    @property
    def perplexity(self) -> float:
        """e to the nats a token."""
        return math.exp(self.nll)

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON has them."""
        return {"windows": len(self.window_nll), "tokens": self.tokens, "nll": self.nll, "perplexity": self.perplexity}


def windows_of(ids: Sequence[int], *, length: int, context: int, origin: Origin) -> list[Encoded]:
    """Cut a text into windows side by side, of which the first `context` tokens are given.

    Args:
        ids: the text; a rest that is too short to have a scored token is left out.
        length: tokens of a window.
        context: at least 1 and fewer than `length`.
        origin: where the text is from.

    Raises:
        DataError: the text is shorter than `context` and one token.
    """
    assert 1 <= context < length
    if len(ids) <= context:
        raise DataError(
            f"{origin}: a text of {len(ids)} tokens", wanted=f"more than {context}, which are given", action="add text"
        )
    parts = [list(ids[start : start + length]) for start in range(0, len(ids), length)]
    rows = [Encoded(part, part, [1.0] * len(part), origin, i) for i, part in enumerate(parts) if len(part) > context]
    return [scored_from(row, context) for row in rows]


def measure_perplexity(
    model: nn.Module,
    windows: Sequence[Encoded],
    *,
    batch_size: BatchSize = "auto",
    progress: Progress | None = None,
) -> Perplexity:
    """Return the perplexity of the scored parts; the arguments and errors are those of `likelihoods`."""
    return Perplexity.of(likelihoods(model, windows, batch_size=batch_size, progress=progress))
