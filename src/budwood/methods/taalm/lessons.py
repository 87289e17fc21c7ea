"""Lessons: a text, a question about it, and J_t, what each token of the text does for the answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from budwood.data.collate import Collator
from budwood.data.render import Encoded
from budwood.errors import DataError
from budwood.methods.taalm.importance import directional, outer_gradient
from budwood.methods.taalm.loop import Progress
from budwood.methods.taalm.passages import Passage
from budwood.methods.taalm.row_cache import RowCache
from budwood.methods.taalm.scorer import scored_mask
from budwood.methods.taalm.theta import Theta, choose_theta
from budwood.training.loss import Batch, language_model

TOGETHER = 8  # texts a forward pass, each with an adapter of its own


@dataclass(frozen=True)
class Lesson:
    """A text, a question about it, and what each token of the text does for the answer.

    Attributes:
        passage: the text D.
        probe: T_D, with labels at the answer.
        importance: J_t at θ0; 0 at tokens that are not scored.
    """

    passage: Passage
    probe: Encoded
    importance: Float[Tensor, " T"]


def measure(
    model: nn.Module,
    passages: Sequence[Passage],
    probes: Sequence[Encoded],
    *,
    cache: RowCache | None = None,
    progress: Progress | None = None,
) -> list[Lesson]:
    """Return the lessons of pairs, with J_t at the adapter's present values.

    Args:
        model: the base with an adapter, which is not changed; with a prefix cache attached this costs a fraction.
        passages, probes: D and T_D, in pairs.
        cache: keeps J_t; its name is to say which base this is, with which adapter.
        progress: called with ("importance", pairs done, pairs).

    Raises:
        DataError: there are no pairs.
        NotSupportedError: as `importance.directional`.
    """
    if not passages:
        raise DataError("there is nothing to train a scorer on", wanted="at least one pair of a text and a question")
    theta = choose_theta(model)

    def compute(chosen: list[int]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        order = sorted(chosen, key=lambda i: -len(passages[i].spans))
        for start in range(0, len(order), TOGETHER):
            part = order[start : start + TOGETHER]
            rows = _measured(theta, [passages[i] for i in part], [probes[i] for i in part])
            found |= zip(part, rows, strict=True)
            if progress is not None:
                progress("importance", chosen[0] + len(found), len(passages))
        return [found[i] for i in chosen]

    if cache is None:
        importance = compute(list(range(len(passages))))
    else:
        importance = cache.rows([_content(*pair) for pair in zip(passages, probes)], compute)
    return [Lesson(*parts) for parts in zip(passages, probes, importance, strict=True)]


def _measured(theta: Theta, passages: Sequence[Passage], probes: Sequence[Encoded]) -> list[Float[Tensor, " T"]]:
    evidence = collated(theta, [passage.encoded for passage in passages])
    point = theta.start(len(passages))
    _, gradient = outer_gradient(theta, point, collated(theta, probes))
    importance = directional(theta, point, evidence, gradient).float().cpu()
    return [row[: len(passage.spans)].clone() for row, passage in zip(importance, passages, strict=True)]


def _content(passage: Passage, probe: Encoded) -> list[object]:
    """Return all that decides a lesson on a given model."""
    return [passage.text, passage.encoded.input_ids, passage.scored, probe.input_ids, probe.labels]


def digest(lessons: Sequence[Lesson]) -> str:
    """Return the SHA-256 of the texts and questions, in their order: the data hash of a prior."""
    said = [_content(lesson.passage, lesson.probe) for lesson in lessons]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def targets(lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
    """Return the mask of scored tokens and J_t of a batch, (rows, T)."""
    importance = pad_sequence([lesson.importance for lesson in lessons], batch_first=True)
    return scored_mask([lesson.passage for lesson in lessons]), importance


def collated(theta: Theta, rows: Sequence[Encoded]) -> Batch:
    device = language_model(theta.model).device
    return {name: value.to(device) for name, value in Collator(pad_token_id=0)(rows).items()}
