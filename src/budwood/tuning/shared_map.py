"""The low-rank maps that layers share.

The shared object is a *module* that sits in the ModuleDict of every layer that uses it. So PEFT's own bookkeeping
(set_adapter, casting, `.to`, deepcopy, loading with `assign=True`) keeps it shared; a bare parameter would be rebound.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from budwood.tuning.edits import Bend, Place


class SharedMap(nn.Module):
    """The parameters of one low-rank map v -> up (down v). A subclass names its parameters as its paper does."""

    @property
    @abstractmethod
    def up(self) -> Tensor:
        """U, shape (d', r)."""

    @property
    @abstractmethod
    def down(self) -> Tensor:
        """V, shape (r, d)."""

    @property
    def bend(self) -> Bend | None:
        """g, which acts where the map meets W (see `edits`); None for the identity."""
        return None

    def parts(self) -> list[tuple[str, SharedMap]]:
        """Return the maps that this one is made of, each with the beginning of its parameters' names in this one."""
        return [("", self)]


@dataclass(frozen=True)
class AdapterSpec:
    """What one adapter brings to one layer; `groups` names the group of each part of a map."""

    maps: dict[Place, SharedMap]
    groups: dict[Place, tuple[str, ...]]
    scale: float
    dropout: float
    edits_bias: bool
