"""A fused matrix whose rows are edited slice by slice: q, k and v in one layer, each with a map of its own.

With R_k the rows of slice k (`c_attn[0:32]` is rows 0 to 31 of W, see `groups`), φ_k and ψ_k its map, and rows in no
slice left as they are:

    input      ΔW[R_k] = s g(W[R_k] φ_k) ψ_k          output     ΔW[R_k] = s φ_k g(ψ_k W[R_k])

Either is one edit of the whole layer (see `edits`) of rank Σ r_k. On the output side U and V are block-diagonal, so it
is computed from activations. On the input side U = [φ_1, φ_2, …] and V = [ψ_1; ψ_2; …], and a bend keeps of W U the
block (R_k, k) of each slice; it is computed from the weight, as other bends are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from budwood.tuning.edits import Bend, Place
from budwood.tuning.groups import Rows
from budwood.tuning.shared_map import SharedMap


class SlicedMap(SharedMap):
    """The maps of several slices of one layer as one map. The parts are shared with other layers, this is not.

    Args:
        place: "input" or "output".
        parts: the map of each slice.
        rows: the rows of each slice.
        out_features: d_out of the layer.
    """

    def __init__(self, place: Place, parts: Sequence[SharedMap], rows: Sequence[Rows], out_features: int) -> None:
        super().__init__()
        self.place, self.rows, self.out_features = place, tuple(rows), out_features
        self.members = nn.ModuleList(parts)

    @property
    def up(self) -> Tensor:
        if self.place == "input":
            return torch.cat([part.up for part in self.members], dim=1)
        return torch.cat([F.pad(part.up, (0, 0, *self._margins(rows))) for part, rows in self._slices()], dim=1)

    @property
    def down(self) -> Tensor:
        if self.place == "input":
            return torch.cat([part.down for part in self.members])
        return torch.cat([F.pad(part.down, self._margins(rows)) for part, rows in self._slices()])

    @property
    def bend(self) -> Bend | None:
        bends = self.place == "input" or any(part.bend is not None for part in self.members)
        return self._bend if bends else None

    def parts(self) -> list[tuple[str, SharedMap]]:
        return [(f"members.{i}.", part) for i, part in enumerate(self.members)]

    def _slices(self) -> Iterator[tuple[SharedMap, Rows]]:
        return zip(self.members, self.rows)

    def _margins(self, rows: Rows) -> Rows:
        return rows[0], self.out_features - rows[1]

    def _bend(self, values: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        """g of each part on its own columns; of W U (input side), only the rows of its slice are kept."""
        columns = values.split([part.up.shape[1] for part in self.members], dim=1)
        bent = []
        for block, (part, rows) in zip(columns, self._slices()):
            kept = block[slice(*rows)] if self.place == "input" else block
            kept = kept if part.bend is None else part.bend(kept)
            bent.append(F.pad(kept, (0, 0, *self._margins(rows))) if self.place == "input" else kept)
        return torch.cat(bent, dim=1)
