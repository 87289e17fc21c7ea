"""What a user can say about training: one model of settings, with the meaning of each. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Tracker = Literal["tensorboard", "trackio", "wandb"]
Normalisation = Literal["token", "sequence", "count", "none"]


class TrainingSettings(BaseModel):
    """How long, how fast and how often. Where two settings say how long, `max_steps` wins."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: float = Field(default=3.0, gt=0, description="Passes over the training rows.")
    max_steps: int | None = Field(
        default=None, ge=1, description="Optimiser steps. Given, it replaces `epochs`; None leaves it to `epochs`."
    )
    batch_size: int = Field(default=8, ge=1, description="Rows that pass through the model together, per process.")
    accumulate: int = Field(
        default=1,
        ge=1,
        description="Batches summed up before each optimiser step. Only their product with batch_size changes the"
        " result: 8 x 1 and 2 x 4 take the same steps.",
    )
    learning_rate: float | None = Field(
        default=None, gt=0, description="Highest learning rate of AdamW. None is the tuner's own default."
    )
    schedule: Literal["linear", "cosine", "constant"] = Field(
        default="linear", description="How the learning rate goes on after the warm-up."
    )
    warmup_steps: float = Field(
        default=5,
        ge=0,
        description="Steps over which the learning rate rises from 0; below 1, that part of all steps. At most half"
        " of the run is warm-up.",
    )
    final_fraction: float = Field(
        default=0.0, ge=0, le=1, description="Part of the highest learning rate at which linear and cosine end."
    )
    normalise: Normalisation = Field(
        default="token",
        description="What a step's loss is a mean over. token: weighted mean over tokens. sequence: weighted mean"
        " within each sequence, then over sequences. count: weighted sum over the number of tokens with a weight."
        " none: weighted sum of each sequence, mean over sequences.",
    )
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay of AdamW.")
    betas: tuple[float, float] = Field(
        default=(0.9, 0.999), description="Decay of AdamW's two moment estimates, each from 0 to below 1."
    )
    max_grad_norm: float = Field(
        default=1.0, ge=0, description="Gradients with a larger L2 norm are scaled down to it; 0 never scales."
    )
    evaluate_every: int | None = Field(
        default=None, ge=1, description="Steps between evaluations. None makes about ten a run."
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        description="Stop after this many evaluations in a row without a lower loss. None trains to the end. The best"
        " evaluated adapter is kept either way.",
    )
    save_every: int | None = Field(
        default=None, ge=1, description="Steps between checkpoints. None makes about ten a run."
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Compute activations twice instead of keeping them: less memory, about 30 % slower."
    )
    cache_prefix: bool | Literal["auto"] = Field(
        default="auto",
        description="Compute the frozen layers below the lowest trained one once for each row, and keep what they give"
        " on disk while training. Dropout in them is off then. auto does so where they are more than half of all"
        " layers and have no dropout, and rows are seen more than once.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="Precision of the frozen base. New parameters are float32."
    )
    device: str = Field(default="auto", description="Where to compute: auto, cpu, cuda, mps.")
    workers: int = Field(default=0, ge=0, description="Processes that prepare batches; 0 does it in this one.")
    trackers: tuple[Tracker, ...] = Field(
        default=(), description="Where to report besides the run folder: tensorboard, trackio, wandb."
    )

    @model_validator(mode="after")
    def _betas_in_range(self) -> TrainingSettings:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas {self.betas} must each be at least 0 and below 1")
        return self
