"""The generator Θ = (φ, ψ) of GIFT: Ŵ = W (I + s φψ) on the input side, Ŵ = (I + s φψ) W on the output side.

Paper: https://arxiv.org/abs/2312.00700 (called WeGeFT from its fifth version on). Learned per group of layers:
φ (d, r) and ψ (r, d), that is 2·d·r numbers, with d the width at the side that is edited; with an MLP 4·r² more.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from budwood.tuning.edits import Bend
from budwood.tuning.shared_map import SharedMap


class GiftGenerator(SharedMap):
    """φ and ψ of one group.

    Args:
        width: d, the width at the edited side.
        rank: r.
        init: which factor starts at zero, so that ΔW = 0: "psi_zero" (paper v3: φ is random, so that its maps W φ
            exist from the first step) or "phi_zero" (v5). "random" starts both at random: for tests only.
        nonlinearity: "identity", "gelu", "sigmoid" or "mlp"; an MLP starts as the identity.
    """

    def __init__(self, width: int, rank: int, init: str, nonlinearity: str = "identity") -> None:
        super().__init__()
        self.phi = nn.Parameter(torch.empty(width, rank))
        self.psi = nn.Parameter(torch.empty(rank, width))
        self._initialise(init)
        self.nonlinearity = nonlinearity
        if nonlinearity == "mlp":
            bound = 1 / math.sqrt(rank)
            self.theta_in = nn.Parameter(torch.empty(2 * rank, rank).uniform_(-bound, bound))
            self.theta_out = nn.Parameter(torch.zeros(rank, 2 * rank))

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

    @property
    def bend(self) -> Bend | None:
        return {"identity": None, "gelu": F.gelu, "sigmoid": torch.sigmoid, "mlp": self._mlp}[self.nonlinearity]

    def _mlp(self, rows: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        """c + Θ₂ gelu(Θ₁ c/‖c‖) for each row c of W φ (or column of ψ W)."""
        theta_in, theta_out = self.theta_in.to(rows), self.theta_out.to(rows)
        return rows + F.linear(F.gelu(F.linear(F.normalize(rows, dim=-1, eps=1e-6), theta_in)), theta_out)
