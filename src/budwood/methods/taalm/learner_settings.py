"""What a user can say about learning from documents: weights, windows, probes, rehearsal. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from budwood.tuning.protocol import LearnerSettings

WeightRule = Literal["taalm", "uniform", "entropy", "one_minus_p", "focal", "capitalised", "token_dropping"]


class DocumentSettings(LearnerSettings):
    """How documents are learned, and how what was learned and kept is measured."""

    prior: Path | None = Field(
        None, description="scorer made by `budwood prepare`; none: the one that ships for this base, or for any base"
    )
    weights: WeightRule = Field(
        "taalm", description="how much each token counts: a trained scorer, or a rule that has learned nothing"
    )
    floor: float | None = Field(
        None, ge=0, le=1, description="share of uniform weights mixed into the scorer's; none: what the scorer says"
    )
    window: int = Field(
        64, ge=16, description="longest piece of a document in tokens, and never more than data.max_length"
    )
    with_heading: bool = Field(
        True, description="write title and heading in front of each piece, as context that is not learned"
    )
    top_layers: int | None = Field(
        None,
        ge=1,
        description="layers from the top that are adapted, where the tuner has layers to choose and none are given;"
        " none: a fifth of all, and at least 4",
    )
    probes: tuple[Path, ...] = Field(
        (), description="questions in other words than the documents'; none: probes*.jsonl in the documents' folders"
    )
    blanks: int = Field(100, ge=1, description="blanks made from the documents, at most")
    keep_set: Path | None = Field(None, description="facts that should still be known; none: those that ship")
    keep: float = Field(0.95, ge=0, le=1, description="share of the known facts that the published epoch must keep")
    rehearse: Path | None = Field(None, description="older text to mix in, with uniform weights")
    rehearse_share: float = Field(0.25, gt=0, lt=1, description="share of the rows that is older text, at most")

    @field_validator("probes", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Path) else value
