"""How much learning a token of a text helps with a question about it: J_t, and the meta-gradient that follows from it.

After one step on the text D with weights w, learning rate η and S = Σ_s w_s,

    θ' = θ − (η / S) Σ_t w_t ∇ℓ_t(θ),        L_T(θ') the mean NLL of the answer's tokens in a probe T_D,

what each weight does to the outer loss needs no second derivative. With g_T = ∇L_T(θ') and J_t = ⟨∇ℓ_t(θ), g_T⟩,

    ∂L_T/∂w_t = −(η / S) (J_t − Σ_s w_s J_s / S).

All J_t of a text are one directional derivative of its token losses along g_T: two forward passes
(`by_difference`, any attention) or one in forward mode (`by_jvp`). `exact_weight_gradient` is the same number by
automatic differentiation through the step, as TAALM computes it (Seo et al., 2024, https://arxiv.org/abs/2407.16920).
The inner step is plain SGD: Adam's first step is nearly sign(g), whose derivative says nothing. DoRA leaves the norm
of its weights out of its gradients, so for it the two ways differ a little.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from budwood.errors import NonFiniteError, NotSupportedError
from budwood.methods.taalm.theta import Point, Theta, token_losses
from budwood.training.loss import IGNORED, Batch, language_model

STEP = 1e-2  # how far θ moves in a central difference, in its own norm; in fp32 rounding and curvature balance there


@dataclass(frozen=True)
class Anchor:
    """Text whose predictions should stay, for λ KL(p_θ0 ‖ p_θ') in the outer loss.

    Attributes:
        batch: one row of text for each row of the evidence, with labels where predictions count.
        weight: λ.
    """

    batch: Batch
    weight: float


def outer_loss(theta: Theta, point: Point, probes: Batch, anchor: Anchor | None = None) -> Float[Tensor, " rows"]:
    """Return L_T of each row: the mean ℓ_t of the probe's labels in nats, plus λ KL where there is an anchor."""
    losses = token_losses(theta, point, probes)
    loss = losses.sum(dim=1) / (probes["labels"][:, 1:] != IGNORED).sum(dim=1)
    return loss if anchor is None else loss + anchor.weight * _drift(theta, point, anchor.batch)


def outer_gradient(
    theta: Theta, point: Point, probes: Batch, anchor: Anchor | None = None
) -> tuple[Float[Tensor, " rows"], Point]:
    """Return L_T of each row at `point`, and its gradient g_T there.

    Raises:
        NonFiniteError: a loss is NaN or infinite.
    """
    point = [value.detach().requires_grad_() for value in point]
    loss = outer_loss(theta, point, probes, anchor)
    if not bool(torch.isfinite(loss).all()):
        raise NonFiniteError(f"the loss of a probe is {loss.detach().tolist()}", wanted="finite logits")
    return loss.detach(), _gradient(loss.sum(), point)


def inner_loss(theta: Theta, point: Point, evidence: Batch, weights: Tensor) -> Float[Tensor, " rows"]:
    """Return L_D of each row: Σ w_t ℓ_t / Σ w_t; `weights` (rows, T) stand at the tokens they weight."""
    losses = token_losses(theta, point, evidence)
    return (weights * losses).sum(dim=1) / weights.sum(dim=1)


def inner_gradient(
    theta: Theta, point: Point, evidence: Batch, weights: Tensor, *, create_graph: bool = False
) -> Point:
    """Return ∇L_D of each row at `point`, on its own copy."""
    return _gradient(inner_loss(theta, point, evidence, weights).sum(), point, create_graph=create_graph)


def inner_step(theta: Theta, point: Point, evidence: Batch, weights: Tensor, learning_rate: float) -> Point:
    """Return θ' after one SGD step on each row, on its own copy; it asks for gradients anew."""
    gradient = inner_gradient(theta, point, evidence, weights)
    rate = weights.new_full((len(weights),), -learning_rate, dtype=torch.float64)
    return [value.detach().requires_grad_() for value in moved(point, gradient, rate)]


def moved(point: Point, direction: Point, reach: Float[Tensor, " rows"]) -> Point:
    """Return each row's copy moved along its direction, by `reach` times it."""
    return [
        value + reach.to(slope.dtype).view(-1, *[1] * (slope.ndim - 1)) * slope
        for value, slope in zip(point, direction, strict=True)
    ]


def directional(theta: Theta, point: Point, evidence: Batch, direction: Point) -> Float[Tensor, "rows T"]:
    """Return J_t along `direction` (g_T) in the way that the base's precision and attention allow.

    In bf16 the difference of two passes is nearly all rounding (cosine .0 to .3 to J_t on SmolLM2-135M).

    Raises:
        NotSupportedError: neither way is exact enough.
    """
    core = language_model(theta.model)
    if core.dtype in (torch.float32, torch.float64):
        return by_difference(theta, point, evidence, direction)
    if core.config._attn_implementation == "eager":
        return by_jvp(theta, point, evidence, direction)
    raise NotSupportedError(
        f"{core.dtype} with the attention {core.config._attn_implementation!r} hides how the loss of a token changes",
        wanted="a base in fp32, or eager attention",
        action='load the base with dtype="float32" or with attention="eager"',
    )


@torch.no_grad()
def by_difference(theta: Theta, point: Point, evidence: Batch, direction: Point) -> Float[Tensor, "rows T"]:
    """Return J_t along `direction` (g_T) by a central difference of two forward passes; 0 where there is no label."""
    norm = row_norms(direction)
    reach = torch.where(norm > 0, STEP / norm, 0)
    ahead, behind = (token_losses(theta, moved(point, direction, sign * reach), evidence) for sign in (1, -1))
    return (ahead - behind) * torch.where(norm > 0, norm / (2 * STEP), 0)[:, None]


def by_jvp(theta: Theta, point: Point, evidence: Batch, direction: Point) -> Float[Tensor, "rows T"]:
    """Return J_t along `direction` (g_T) by one pass in forward mode.

    Raises:
        NotSupportedError: the attention has no forward-mode derivative.
    """
    _require_eager(theta, "forward-mode derivatives")

    # Not torch.func.jvp: it hides the ids, which the prefix cache looks rows up by.
    with torch.no_grad(), forward_ad.dual_level():
        duals = [forward_ad.make_dual(value.detach(), slope) for value, slope in zip(point, direction, strict=True)]
        losses = token_losses(theta, duals, evidence)
        slopes = forward_ad.unpack_dual(losses).tangent
    return torch.zeros_like(losses) if slopes is None else slopes


def weight_gradient(importance: Tensor, weights: Tensor, learning_rate: float) -> Float[Tensor, "rows T"]:
    """Return ∂L_T/∂w_t from J_t, for weights of which each row has some above 0. Σ_t w_t ∂L_T/∂w_t = 0."""
    total = weights.sum(dim=1, keepdim=True)
    mean = (weights * importance).sum(dim=1, keepdim=True) / total
    return -learning_rate / total * (importance - mean)


def exact_weight_gradient(
    theta: Theta,
    point: Point,
    evidence: Batch,
    weights: Tensor,
    probes: Batch,
    learning_rate: float,
) -> Float[Tensor, "rows T"]:
    """Return ∂L_T/∂w_t by automatic differentiation through the inner step: the reference for `weight_gradient`.

    Raises:
        NotSupportedError: the attention has no second derivative.
    """
    _require_eager(theta, "second derivatives")
    weights = weights.detach().requires_grad_()
    gradient = inner_gradient(theta, point, evidence, weights, create_graph=True)
    rate = weights.new_full((len(weights),), -learning_rate, dtype=torch.float64)
    loss = outer_loss(theta, moved(point, gradient, rate), probes).sum()
    return torch.autograd.grad(loss, weights)[0]


def row_norms(point: Point) -> Float[Tensor, " rows"]:
    """Return the Euclidean norm of each row's copy."""
    return torch.stack([value.flatten(1).square().sum(dim=1) for value in point]).sum(dim=0).sqrt()


def _gradient(loss: Tensor, point: Point, *, create_graph: bool = False) -> Point:
    # Experts that no token reached have no gradient, which is 0.
    return list(torch.autograd.grad(loss, point, create_graph=create_graph, materialize_grads=True))


def _drift(theta: Theta, point: Point, anchors: Batch) -> Float[Tensor, " rows"]:
    """Return KL(p_θ0 ‖ p_θ) of each row, in nats a token."""
    with torch.no_grad():
        before, _ = theta.logits(theta.start(len(anchors["labels"])), anchors)
    after, targets = theta.logits(point, anchors)
    before, after = (logits.float().log_softmax(dim=-1) for logits in (before, after))
    kl = (before.exp() * (before - after)).sum(dim=-1)
    rows = kl.new_zeros(len(anchors["labels"]))
    counts = torch.bincount(targets.rows, minlength=len(rows)).clamp_min(1)
    return rows.index_add(0, targets.rows, kl) / counts


def _require_eager(theta: Theta, what: str) -> None:
    attention = language_model(theta.model).config._attn_implementation
    if attention != "eager":
        raise NotSupportedError(
            f"{what} through the attention {attention!r}",
            wanted="eager attention",
            action='load the base with attention="eager", or use importance.by_difference, which needs neither',
        )
