"""Training a scorer of tokens on pairs of a text and a question about it.

Stage 1 learns from J_t, measured once at θ0 (`lessons.measure`) at the price of about two forward passes a text.
Stage 2 goes on with the true outer loss after inner steps, by the closed form of `meta_gradient.py`; θ is reset for
each text, as in TAALM (https://arxiv.org/abs/2407.16920). Both stop early on validation texts and say so where the
scorer does not beat uniform weights: then its weights would only do harm.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from budwood.data.render import Encoded
from budwood.errors import DataError
from budwood.methods.taalm.lessons import TOGETHER, Lesson, digest, targets
from budwood.methods.taalm.loop import Course, Loop
from budwood.methods.taalm.meta_gradient import make_anchor, meta_gradient, one_step_drop, rate_of_norm
from budwood.methods.taalm.objectives import OBJECTIVES, alignment, log_shares, standardised
from budwood.methods.taalm.scorer import TrainableScorer
from budwood.methods.taalm.settings import MetaSettings, StageSettings
from budwood.methods.taalm.theta import choose_theta

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How a stage ended.

    Attributes:
        step: the step whose parameters the scorer has now.
        measure: what was looked at: "alignment" (stage 1), or "drop", of the outer loss in nats (stage 2).
        value: that of the scorer's weights on the validation texts.
        uniform: that of uniform weights.
    """

    step: int
    measure: str
    value: float
    uniform: float

    @property
    def beats_uniform(self) -> bool:
        return self.value > self.uniform


def train_on_importance(
    scorer: TrainableScorer,
    lessons: Sequence[Lesson],
    validation: Sequence[Lesson],
    settings: StageSettings,
    course: Course,
) -> Outcome:
    """Stage 1: train on J_t; leave the scorer with the parameters of the best validation alignment.

    Args:
        scorer: trained in place.
        lessons: to train on.
        validation: to stop by; on texts of other relations than the lessons' the figure is an honest one.
        settings: of the stage.
        course: seed and folder; the same call goes on after an interruption.

    Raises:
        NonFiniteError: the loss is NaN or infinite.
    """
    prepared = scorer.prepare([lesson.passage for lesson in lessons])
    judged = scorer.prepare([lesson.passage for lesson in validation])

    def loss(chosen: list[int]) -> Tensor:
        batch = [lessons[i] for i in chosen]
        mask, importance = targets(batch)
        scores = scorer([prepared[i] for i in chosen]).cpu()
        return OBJECTIVES[settings.objective](scores, standardised(importance, mask), mask)

    def aligned() -> float:
        return alignment(_shares(scorer, judged, validation), *targets(validation)[::-1])

    loop = Loop(scorer, settings, course, "stage1", rows=len(lessons), data=digest([*lessons, *validation]))
    step, value = loop.run(loss, aligned)
    mask, importance = targets(validation)
    return _judged(Outcome(step, "alignment", value, alignment(mask.float(), importance, mask)))


def train_on_outcome(
    scorer: TrainableScorer,
    model: nn.Module,
    lessons: Sequence[Lesson],
    validation: Sequence[Lesson],
    settings: MetaSettings,
    course: Course,
    *,
    anchors: Sequence[Encoded] = (),
) -> Outcome:
    """Stage 2: train on the outer loss after inner steps; leave the scorer with the parameters of the largest drop.

    Args:
        model: the base with a fresh adapter, which is not changed.
        anchors: text whose predictions should stay, where `settings.retention` is above 0.

    The rest is as in `train_on_importance`.

    Raises:
        DataError: retention without anchors.
        NonFiniteError: a loss is NaN or infinite.
    """
    if settings.retention and not anchors:
        raise DataError("retention without a text to keep", wanted="anchor texts", action="give some, or set it to 0")
    theta = choose_theta(model)
    prepared = scorer.prepare([lesson.passage for lesson in lessons])
    judged = scorer.prepare([lesson.passage for lesson in validation])
    rate = rate_of_norm(theta, lessons[: settings.batch_size], settings.inner_norm)

    def loss(chosen: list[int]) -> Tensor:
        batch = [lessons[i] for i in chosen]
        mask, _ = targets(batch)
        weights = log_shares(scorer([prepared[i] for i in chosen]).cpu().mean(dim=0), mask).exp()
        anchor = make_anchor(theta, anchors, chosen, settings.retention)
        slope = meta_gradient(theta, batch, weights.detach(), rate, settings.inner_steps, anchor)
        # ∂L_T/∂w is of the order of the rate: over it, the loss and its printed value do not depend on the choice.
        return (weights * slope / rate).sum(dim=1).mean()

    def dropped() -> float:
        return one_step_drop(theta, validation, _shares(scorer, judged, validation), settings.inner_norm)

    loop = Loop(scorer, settings, course, "stage2", rows=len(lessons), data=digest([*lessons, *validation]))
    step, value = loop.run(loss, dropped)
    uniform = one_step_drop(theta, validation, targets(validation)[0].float(), settings.inner_norm)
    return _judged(Outcome(step, "drop", value, uniform))


def _shares(scorer: TrainableScorer, prepared: Sequence[object], lessons: Sequence[Lesson]) -> Tensor:
    """Return the softmax of the scores of all lessons, one batch, without gradients; the loop has set the mode."""
    mask, _ = targets(lessons)
    shares = torch.zeros(mask.shape)
    with torch.no_grad():
        for start in range(0, len(lessons), TOGETHER):
            scores = scorer(prepared[start : start + TOGETHER]).cpu().mean(dim=0)
            rows = slice(start, start + len(scores))
            shares[rows, : scores.shape[1]] = log_shares(scores, mask[rows, : scores.shape[1]]).exp()
    return shares


def _judged(outcome: Outcome) -> Outcome:
    if not outcome.beats_uniform:
        log.warning(
            "the scorer does not beat uniform weights on the validation texts (%s %.3f, uniform %.3f): train it on "
            "more texts, or leave it out",
            outcome.measure,
            outcome.value,
            outcome.uniform,
        )
    return outcome
