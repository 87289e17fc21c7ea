"""What a user can say about learning from documents: weights, windows, probes, and what keeps old knowledge.

Imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from budwood.tuning.protocol import LearnerSettings

WeightRule = Literal["taalm", "uniform", "entropy", "one_minus_p", "focal", "capitalised", "token_dropping"]
UpdateRule = Literal["adamw", "recadam"]
Reviewed = Literal["none", "known", "generated", "older"]


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

    review: Reviewed = Field(
        "none",
        description="mix-review: what is seen again beside the documents, less from epoch to epoch. known: facts that"
        " the base knows; generated: text that it writes itself; older: the text of --rehearse, in place of its share",
    )
    mix_ratio: float = Field(4.0, gt=0, description="reviewed rows for each row of the documents in the first epoch")
    mix_decay: float = Field(0.7, ge=0, le=1, description="factor on that from epoch to epoch")
    generated: int = Field(128, ge=1, description="texts that the base writes to review them")
    anchor: float = Field(
        0.0,
        ge=0,
        description="λ of KL(before ‖ now) on text whose predictions should stay, added to the loss; 0 is without",
    )
    anchor_text: Path | None = Field(
        None, description="that text; none: that of --rehearse, or else facts that the base knows"
    )
    anchor_rows: int = Field(4, ge=1, description="pieces of that text that each step looks at")
    update: UpdateRule = Field(
        "adamw", description="how the adapter is updated; recadam also pulls it back to its start, and learns later"
    )
    pull: float = Field(300.0, ge=0, description="γ of recadam: how strongly ΔW is pulled back to where it started")
    anneal_at: float = Field(
        0.25, ge=0, le=1, description="t₀ of recadam, as a share of all steps: half learning, half pull"
    )
    anneal_rate: float | None = Field(
        None, gt=0, description="k of recadam, per step: how fast the pull gives way; none: 5 / t₀"
    )
    base_run: Path | None = Field(
        None, description="an earlier run on this base: its adapter is the start, and what it learned is to be kept"
    )

    @property
    def starts_from(self) -> Path | None:
        return self.base_run

    @property
    def reserves_facts(self) -> bool:
        """Whether half of the keep-set serves as text to train on, and may not be examined."""
        anchored = self.anchor > 0 and self.anchor_text is None and self.rehearse is None
        return self.review in ("known", "generated") or anchored

    @field_validator("probes", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Path) else value
