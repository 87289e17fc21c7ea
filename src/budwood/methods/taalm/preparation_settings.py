"""What a user can say about the making of a scorer."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from budwood.methods.taalm.settings import BodySettings, HeadSettings, MetaSettings, StageSettings, WeightSettings


class ScorerSettings(BaseModel):
    """How a scorer is made; `budwood prepare … --set body.kind=encoder`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    body: BodySettings = Field(HeadSettings(), discriminator="kind", description="what scores the tokens")
    stage: StageSettings = Field(StageSettings(), description="training on J_t")
    meta: MetaSettings | None = Field(None, description="training on the true outer loss afterwards; none: left out")
    weights: WeightSettings = Field(
        WeightSettings(), description="how scores become weights when documents are learned"
    )
    top_layers: int | None = Field(
        None, ge=1, description="layers from the top that J_t is measured for; none: a fifth of all, and at least 4"
    )
    longest: int = Field(128, ge=16, description="longest text, and longest question, in tokens; others are left out")
    validation: Path | None = Field(None, description="rows to judge by; none: a share of the corpus is held out")
    validation_share: float = Field(0.15, gt=0, lt=1, description="that share of the texts")
