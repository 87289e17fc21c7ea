"""Does a choice among several prompts pay? Each alone, a random one, the best constant one and an oracle beside it.

The prompts' own losses span the head-room of any choice: from the mean over them (a prompt at random) to the mean of
the lowest of each text (an oracle that has seen what is scored). A bank whose choice is no better than its best single
prompt makes no dynamic gain, and the figures say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import nn

from budwood.data.render import Encoded
from budwood.evals._running import BatchSize, Progress
from budwood.evals.likelihood import Likelihood, likelihoods, select_prompts
from budwood.evals.paired import paired_difference
from budwood.tuning.soft_prompts import Prompted


@dataclass(frozen=True, eq=False)
class Choices:
    """The losses of n texts, in nats a scored token.

    Attributes:
        names: of the m prompts.
        tokens: scored tokens of each text, (n,).
        alone: behind each prompt, (n, m).
        selection: the number of the chosen prompt, (n,).
        base: without any prompt, (n,).
    """

    names: tuple[str, ...]
    tokens: Int[np.ndarray, " n"]
    alone: Float[np.ndarray, "n m"]
    selection: Int[np.ndarray, " n"]
    base: Float[np.ndarray, " n"]

    @property
    def chosen(self) -> Float[np.ndarray, " n"]:
        """The losses behind the chosen prompts."""
        return self.alone[np.arange(len(self.alone)), self.selection]

    def mean(self, losses: Float[np.ndarray, " n"]) -> float:
        """Return nats a token over all texts."""
        return float((losses * self.tokens).sum() / self.tokens.sum())

    def columns(self) -> dict[str, Float[np.ndarray, " n"]]:
        """Return the losses of each way to choose, by its name."""
        own = {name: self.alone[:, i] for i, name in enumerate(self.names)}
        constant = min(own, key=lambda name: self.mean(own[name]))
        return {
            "base": self.base,
            **{f"always {name}": losses for name, losses in own.items()},
            "best constant": own[constant],
            "random": self.alone.mean(axis=1),
            "chosen": self.chosen,
            "oracle": self.alone.min(axis=1),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return means, the share of the head-room, the histogram, and paired 95 % intervals against the choice."""
        columns = self.columns()
        means = {name: self.mean(losses) for name, losses in columns.items()}
        room = means["random"] - means["oracle"]
        counts = Counter(self.selection.tolist())
        weights = self.tokens.astype(float).tolist()
        gains = {
            name: paired_difference(self.chosen.tolist(), columns[name].tolist(), weights)
            for name in ("base", "random", "best constant")
        }
        return {
            "texts": len(self.chosen),
            "nll": means,
            "share_of_head_room": (means["random"] - means["chosen"]) / room if room > 0 else None,
            "histogram": {name: counts.get(i, 0) for i, name in enumerate(self.names)},
            "against": {name: gain.to_dict() for name, gain in gains.items()},
            "dynamic_gain": gains["best constant"].high < 0,
        }


def measure_choices(
    model: Prompted,
    parts: Mapping[str, nn.Module],
    base: nn.Module,
    texts: Sequence[Encoded],
    *,
    batch_size: BatchSize = "auto",
    progress: Progress | None = None,
) -> Choices:
    """Score texts behind each prompt and without any, and let the model choose.

    Args:
        model: chooses among its prompts, from the part of each text that is not scored.
        parts: each of its prompts alone, by name, in its order.
        base: the model without prompts.
        texts: the scored part carries labels; see `perplexity.windows_of`.
        batch_size, progress: as in `likelihoods`.
    """

    def score(one: nn.Module) -> list[Likelihood]:
        return likelihoods(one, texts, batch_size=batch_size, progress=progress)

    selection = select_prompts(model, texts, batch_size=batch_size)
    alone, bare = [score(part) for part in parts.values()], score(base)
    tokens = np.array([one.tokens for one in bare])
    return Choices(tuple(parts), tokens, np.stack([_means(one) for one in alone], axis=1), selection, _means(bare))


def choice_figures(
    model: Prompted,
    parts: Mapping[str, nn.Module],
    base: nn.Module,
    texts: Sequence[Encoded],
    *,
    progress: Progress | None = None,
) -> dict[str, Any] | None:
    """Return the figures of `measure_choices`; None where there are no texts to measure on."""
    return measure_choices(model, parts, base, texts, progress=progress).to_dict() if texts else None


def _means(found: Sequence[Likelihood]) -> Float[np.ndarray, " n"]:
    return np.array([one.nll / one.tokens for one in found])
