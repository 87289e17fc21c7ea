"""The generator Θ = (φ, ψ) of GIFT: Ŵ = W (I + s φψ) on the input side, Ŵ = (I + s φψ) W on the output side.

Paper: https://arxiv.org/abs/2312.00700 (called WeGeFT from its fifth version on). Learned per group of layers:
φ (d, r) and ψ (r, d), that is 2·d·r numbers, with d the width at the side that is edited.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from budwood.tuning.shared_layer import SharedMap


class GiftGenerator(SharedMap):
    """φ and ψ of one group.

    Args:
        width: d, the width at the edited side.
        rank: r.
        init: which factor starts at zero, so that ΔW = 0: "psi_zero" (paper v3: φ is random, so that its maps W φ
            exist from the first step) or "phi_zero" (v5). "random" starts both at random: for tests only.
    """

    def __init__(self, width: int, rank: int, init: str) -> None:
        super().__init__()
        self.phi = nn.Parameter(torch.empty(width, rank))
        self.psi = nn.Parameter(torch.empty(rank, width))
        self._initialise(init)

    def _initialise(self, init: str) -> None:
        bound = 1 / math.sqrt(self.phi.shape[0])  # nn.Linear's default for d inputs, as in the authors' code
        with torch.no_grad():
            for name, factor in (("phi", self.phi), ("psi", self.psi)):
                if init == f"{name}_zero":
                    factor.zero_()
                else:
                    factor.uniform_(-bound, bound)

    @property
    def up(self) -> Tensor:
        return self.phi

    @property
    def down(self) -> Tensor:
        return self.psi
