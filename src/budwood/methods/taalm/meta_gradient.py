"""What weights do to the outer loss of lessons, starting from θ0: the meta-gradient, and the drop of one step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from budwood.data.render import Encoded
from budwood.methods.taalm.importance import (
    Anchor,
    directional,
    inner_gradient,
    inner_step,
    moved,
    outer_gradient,
    outer_loss,
    row_norms,
    weight_gradient,
)
from budwood.methods.taalm.lessons import TOGETHER, Lesson, collated, targets
from budwood.methods.taalm.theta import Theta


def meta_gradient(
    theta: Theta,
    lessons: Sequence[Lesson],
    weights: Float[Tensor, "rows T"],
    learning_rate: float,
    inner_steps: int = 1,
    anchor: Anchor | None = None,
) -> Float[Tensor, "rows T"]:
    """Return ∂L_T/∂w_t after inner steps from θ0, of which the last is differentiated; on the CPU."""
    evidence = collated(theta, [lesson.passage.encoded for lesson in lessons])
    placed = weights.to(evidence["labels"].device)
    point = theta.start(len(lessons))
    for _ in range(inner_steps - 1):
        point = [
            value.detach().requires_grad_() for value in inner_step(theta, point, evidence, placed, learning_rate)
        ]
    moved = inner_step(theta, point, evidence, placed, learning_rate)
    _, gradient = outer_gradient(theta, moved, collated(theta, [lesson.probe for lesson in lessons]), anchor)
    importance = directional(theta, point, evidence, gradient)
    return weight_gradient(importance, placed, learning_rate).float().cpu()


def one_step_drop(theta: Theta, lessons: Sequence[Lesson], weights: Float[Tensor, "rows T"], norm: float) -> float:
    """Return by how many nats one SGD step of this norm lowers L_T, on the mean over texts."""
    total = 0.0
    for start in range(0, len(lessons), TOGETHER):
        part = lessons[start : start + TOGETHER]
        evidence = collated(theta, [lesson.passage.encoded for lesson in part])
        probes = collated(theta, [lesson.probe for lesson in part])
        inside = weights[start : start + len(part), : evidence["labels"].shape[1]].to(evidence["labels"].device)
        point = theta.start(len(part))
        gradient = inner_gradient(theta, point, evidence, inside)
        after = moved(point, gradient, -norm / row_norms(gradient).clamp_min(1e-30))
        with torch.no_grad():
            total += float((outer_loss(theta, point, probes) - outer_loss(theta, after, probes)).sum())
    return total / len(lessons)


def rate_of_norm(theta: Theta, lessons: Sequence[Lesson], norm: float) -> float:
    """Return the rate at which an inner step with uniform weights has this norm, on the mean over some texts."""
    evidence = collated(theta, [lesson.passage.encoded for lesson in lessons])
    mask, _ = targets(lessons)
    point = theta.start(len(lessons))
    gradient = inner_gradient(theta, point, evidence, mask.float().to(evidence["labels"].device))
    return norm / float(row_norms(gradient).mean())


def make_anchor(theta: Theta, anchors: Sequence[Encoded], chosen: Sequence[int], weight: float) -> Anchor | None:
    """Return an anchor text for each of the chosen lessons, in turn; None without weight."""
    if not weight:
        return None
    return Anchor(collated(theta, [anchors[i % len(anchors)] for i in chosen]), weight)
