"""What a user can say about a bank: how the text is divided, how the rate is found, how prompts are chosen.

The length of the prompts is the tuner's affair (`tuner.tokens`), how long they are trained the training's. Imports no
torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from budwood.tuning.protocol import LearnerSettings


class BankSettings(LearnerSettings):
    """How plain text becomes a bank of soft prompts."""

    divide: Literal["auto", "files", "clusters"] = Field(
        "auto",
        description="what gets a prompt of its own: each file, or each cluster of windows with similar words; auto:"
        " files where there are 2 to 8 of them, else clusters",
    )
    prompts: int | None = Field(
        None, ge=1, le=64, description="how many clusters; none: 3, or fewer where the text is too little for that"
    )
    lengths: tuple[int, ...] = Field(
        (), description="vectors of each prompt, in order; empty: tuner.tokens for all, which keeps choices unbiased"
    )
    common: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="share of all steps that goes into one prompt on all text, from which each prompt goes on; 0: each"
        " prompt starts from the vocabulary, as in the paper",
    )
    window: int = Field(256, ge=32, description="longest piece of text in tokens, and never more than data.max_length")
    search: tuple[float, ...] = Field(
        (0.3, 1.0, 3.0),
        description="multiples of training.learning_rate that are tried on a mixture of all text; empty tries none",
    )
    search_steps: int | None = Field(
        None,
        ge=1,
        description="optimiser steps of each trial; none: 20, or fewer where all trials would take more than a quarter"
        " of the steps of the training, and no trial where that leaves fewer than 5",
    )
    selector: Literal["likelihood", "attention", "router", "paper"] = Field(
        "likelihood", description="what chooses a prompt for an input"
    )
    contexts: int = Field(90, ge=2, description="texts that a selector is calibrated on, where it has to be")
    extend: Path | None = Field(
        None, description="a finished bank of the same base whose prompts come first, untouched; new ones are added"
    )

    @field_validator("lengths", "search")
    @classmethod
    def _positive(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if any(value <= 0 for value in values):
            raise ValueError("all must be above 0")
        return values
