"""What a user can say about data: one model of settings, with the meaning of each."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Template = Literal["auto", "chat", "plain"]


class DataSettings(BaseModel):
    """How rows become batches, and which rows are held out.

    Rows are never packed behind one another. Packed rows read each other unless every attention implementation of
    every model masks them apart, which cannot be promised; rows of similar length share a batch instead, so little is
    padded.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_length: int = Field(
        default=1024, ge=2, description="Longest row in tokens. Longer rows are dropped and counted, never cut."
    )
    template: Template = Field(
        default="auto",
        description="How messages become text: the tokenizer's chat template, plain text, or (auto) the chat template"
        " where the tokenizer has one.",
    )
    system: str | None = Field(
        default=None, description="System message put before every row that has none. None puts nothing."
    )
    evaluation_fraction: float = Field(
        default=0.1, ge=0.0, lt=1.0, description="Part of the rows held out for evaluation, between 0 and 1."
    )
    evaluation_rows_max: int = Field(
        default=200, ge=0, description="At most this many rows are held out, however many there are."
    )
    evaluation_file: Path | None = Field(
        default=None,
        description="File of rows to evaluate on. With it nothing is held out, and all its rows are used.",
    )
