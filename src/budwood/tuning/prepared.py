"""What a method with a prior says of itself: how the part is made that it needs once for a base.

    PRIOR/  prior.json  weights.safetensors  status.json  env.json  metrics.json  checkpoints/

A prior is made from a corpus, before any evidence is at hand, and serves many adapters of that base.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from budwood.models import Source
from budwood.training.folder import RunFolder
from budwood.tuning.lesson import AdapterStart


@dataclass(frozen=True)
class Preparation:
    """What is to be prepared.

    Attributes:
        source: the base; its weights are not read yet.
        corpus: files that the prior is trained on.
        settings: of the method's preparation.
        device: where to compute.
        seed: of all that is drawn.
        start: the run at whose adapter the prior is made; None for a fresh adapter.
    """

    source: Source
    corpus: tuple[Path, ...]
    settings: BaseModel
    device: str
    seed: int
    start: AdapterStart | None = None


class Ready(Protocol):
    """A corpus that was read and found good."""

    def outline(self) -> dict[str, Any]:
        """Say what `make` would do, without weights."""

    def make(self, folder: RunFolder, *, progress: bool) -> dict[str, Any]:
        """Train the prior, write it into `folder` and return its figures.

        What was done before an interruption is found again in the folder.
        """


class Preparer(Protocol):
    """How a method makes its prior."""

    @property
    def settings(self) -> type[BaseModel]:
        """The class of its settings; the defaults are its defaults."""

    def read(self, order: Preparation) -> Ready:
        """Read the corpus. What cannot be used is refused here, before a folder is made."""
