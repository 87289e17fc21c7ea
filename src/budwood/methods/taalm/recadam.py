"""RecAdam for a low-rank adapter: learning that begins with holding still.

Chen et al., 2020 (https://arxiv.org/abs/2004.12651) let the objective move from staying to learning,

    λ(t) L(θ) + (1 − λ(t)) γ/2 ‖θ − θ*‖²,        λ(t) = 1 / (1 + exp(−k (t − t₀))),

and keep the quadratic part out of Adam's moments, as AdamW does with weight decay. With learning rate η, step t is

    θ ← θ − η (λ(t) Adam(∇L) + (1 − λ(t)) γ ∇P),        P the quadratic part at θ.

Here θ is what the adapter does to each layer, ΔW = s B A, and not A and B by themselves: there are many pairs for one
ΔW, and what is to be kept is the function. So with the ΔW* = s B* A* that a layer started from (0 for a fresh adapter)

    P = ½ ‖s B A − s B* A*‖²,
    ∂P/∂B = s² (B (A Aᵀ) − B* (A* Aᵀ)),        ∂P/∂A = s² ((Bᵀ B) A − (Bᵀ B*) A*),

products of r columns only: no matrix of the size of W is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from peft import PeftModel
from peft.tuners.lora.layer import LoraLayer
from torch import Tensor, nn

from budwood.errors import ConfigError, NotSupportedError
from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.training.plan import Plan
from budwood.training.settings import TrainingSettings
from budwood.tuning.factors import lora_factors

STARTS_AT = 5.0  # k t₀ unless k is given: at the first step λ is .7 %


@dataclass(frozen=True)
class Pair:
    """A layer's trained factors, and where they started.

    Attributes:
        A, B: (r, d_in) and (d_out, r), without the scale.
        A_start, B_start: the same at the start.
        scale: s.
    """

    A: Float[Tensor, "r d_in"]
    B: Float[Tensor, "d_out r"]
    A_start: Float[Tensor, "r d_in"]
    B_start: Float[Tensor, "d_out r"]
    scale: float

    def slopes(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return (A, ∂P/∂A) and (B, ∂P/∂B)."""
        square = self.scale**2
        to_a = square * ((self.B.T @ self.B) @ self.A - (self.B.T @ self.B_start) @ self.A_start)
        to_b = square * (self.B @ (self.A @ self.A.T) - self.B_start @ (self.A_start @ self.A.T))
        return (self.A, to_a), (self.B, to_b)


def find_pairs(model: nn.Module, adapter: str = "default") -> list[Pair]:
    """Return the factors of each layer of a LoRA; where it is now counts as where it started.

    Raises:
        NotSupportedError: the adapter is anything else than pairs A, B of linear layers.
    """
    try:
        if not isinstance(model, PeftModel):
            raise NotSupportedError("it is no PEFT adapter")
        lora_factors(model, adapter)  # says what no plain LoRA has: DoRA's magnitude, trained biases, …
        pairs = list(_pairs(model, adapter))
        if not pairs:
            raise NotSupportedError("its layers share what they train")
    except NotSupportedError as error:
        raise NotSupportedError(
            f"recadam pulls the ΔW = BA of a LoRA back to its start, and this adapter is none: {error.got}",
            wanted="--tuner lora",
            action="leave out --update; learner.anchor holds the predictions of any adapter",
        ) from error
    return pairs


def _pairs(model: PeftModel, adapter: str) -> Iterator[Pair]:
    for layer in model.modules():
        if isinstance(layer, LoraLayer) and adapter in layer.lora_A:
            a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
            yield Pair(a, b, a.detach().clone(), b.detach().clone(), float(layer.scaling[adapter]))


class RecAdam(torch.optim.AdamW):
    """Adam with a pull on the ΔW of low-rank layers; all of its parameters are in one group.

    Args:
        pairs: the layers; their factors are what is trained.
        pull: γ.
        rate: k, per step.
        middle: t₀, the step at which λ is a half.
        options: of AdamW; weight decay is none.
    """

    def __init__(self, pairs: Sequence[Pair], *, pull: float, rate: float, middle: float, **options: Any) -> None:
        super().__init__([factor for pair in pairs for factor in (pair.A, pair.B)], weight_decay=0.0, **options)
        self._pairs, self._pull, self._rate, self._middle = pairs, pull, rate, middle

    def share(self, step: int) -> float:
        """Return λ at step t, counted from 1."""
        return 1 / (1 + math.exp(min(700.0, -self._rate * (step - self._middle))))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step."""
        (group,) = self.param_groups
        full, share = group["lr"], self.share(self._done() + 1)
        slopes = [slope for pair in self._pairs for slope in pair.slopes()]  # before Adam moves the factors
        group["lr"] = full * share
        try:
            loss = super().step(closure)
        finally:
            group["lr"] = full
        for factor, slope in slopes:
            factor.sub_(slope, alpha=full * (1 - share) * self._pull)
        return loss

    def _done(self) -> int:
        """Return the number of steps taken, which a checkpoint keeps."""
        state = self.state.get(self._pairs[0].A, {})
        return int(state["step"]) if "step" in state else 0


def recadam(model: nn.Module, plan: Plan, *, settings: DocumentSettings, training: TrainingSettings) -> RecAdam:
    """Return the optimiser for a model with a LoRA at its start, for a run of this plan.

    Raises:
        ConfigError: the pull is so strong that a step overshoots.
        NotSupportedError: the adapter is no LoRA.
    """
    pairs = find_pairs(model)
    _require_stable(pairs, settings.pull, training.learning_rate or 0.0)
    middle = max(1.0, settings.anneal_at * plan.total_steps)
    rate = STARTS_AT / middle if settings.anneal_rate is None else settings.anneal_rate
    options = {"lr": training.learning_rate, "betas": training.betas}
    return RecAdam(pairs, pull=settings.pull, rate=rate, middle=middle, **options)


def _require_stable(pairs: Sequence[Pair], pull: float, learning_rate: float) -> None:
    """Refuse a pull whose own steps grow: gradient descent on P needs η γ s² ‖A‖² < 2, and so for B."""
    norms = [
        pair.scale * float(torch.linalg.matrix_norm(one.detach(), 2)) for pair in pairs for one in (pair.A, pair.B)
    ]
    most = 2 / (max(learning_rate, 1e-30) * max(norms) ** 2)
    if pull >= most:
        raise ConfigError(
            f"learner.pull={pull:g} overshoots at a learning rate of {learning_rate:g}",
            wanted=f"below {most:.3g} with this adapter",
            action=f"set learner.pull={most / 10:.1g}, or a lower training.learning_rate",
        )


def require_no_decay(training: TrainingSettings) -> None:
    """Refuse weight decay, which would pull A and B to 0 while recadam pulls BA to its start.

    Raises:
        ConfigError: there is some.
    """
    if training.weight_decay:
        raise ConfigError(
            f"training.weight_decay={training.weight_decay} with --update recadam",
            wanted="one pull: recadam's is learner.pull",
            action="leave out training.weight_decay",
        )
