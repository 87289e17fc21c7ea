"""What a training may do for what the model knew before: review it, be anchored to it, be pulled back to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from budwood.training.anchor import Anchor
from budwood.training.plan import Plan
from budwood.training.review import Review

MakeOptimiser = Callable[[nn.Module, Plan], Optimizer]


@dataclass(frozen=True)
class Retention:
    """Three ways that exclude one another nowhere.

    Attributes:
        anchor: predictions that are held.
        review: rows that are seen again.
        optimiser: makes an optimiser in place of AdamW; called before a checkpoint is loaded.
    """

    anchor: Anchor | None = None
    review: Review | None = None
    optimiser: MakeOptimiser | None = None
