"""The settings of a scorer, of its training and of the weights made from its scores. A prior keeps them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from budwood.methods.taalm.objectives import Objective


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WeightSettings(_Settings):
    """From scores to weights: exp((f_t − max f) / τ), cut off, mixed with uniform weights."""

    temperature: float = Field(default=1.0, gt=0, description="τ: smaller puts more weight on fewer tokens")
    cut_off: float = Field(default=0.05, ge=0, lt=1, description="weights below this share of the largest become 0")
    floor: float = Field(
        default=0.2, ge=0, le=1, description="share of uniform weights mixed in; 0 is faster and forgets more"
    )


class HeadSettings(_Settings):
    """A small head on the base's own hidden states and on features of the tokens."""

    kind: Literal["head"] = "head"
    layers: tuple[int, ...] = Field(default=(), description="layers whose input is read")
    width: int = Field(default=64, ge=1, description="hidden units")
    neighbours: int = Field(default=1, ge=0, description="tokens on either side that are read too")
    dropout: float = Field(default=0.3, ge=0, lt=1)
    members: int = Field(default=2, ge=1, description="heads from different seeds whose scores are averaged")


class EncoderSettings(_Settings):
    """A bidirectional encoder with LoRA and a scalar head, carried to the base's tokens by characters."""

    kind: Literal["encoder"] = "encoder"
    encoder: str = Field(default="minilm", description="'minilm', the packaged one, or a folder")
    rank: int = Field(default=8, ge=1, description="of its LoRA on q and v")


class BaseSettings(_Settings):
    """The base itself with LoRA and a scalar head instead of its own: the scorer of the paper."""

    kind: Literal["base"] = "base"
    rank: int = Field(default=16, ge=1, description="of its LoRA on all projections")
    dropout: float = Field(default=0.1, ge=0, lt=1)


BodySettings = HeadSettings | EncoderSettings | BaseSettings


class StageSettings(_Settings):
    """Training on known J_t (stage 1)."""

    objective: Objective = "first_order"
    steps: int = Field(default=300, ge=1)
    batch_size: int = Field(default=32, ge=1, description="texts a step")
    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    validate_every: int = Field(default=25, ge=1, description="steps between looks at the validation texts")
    patience: int = Field(default=4, ge=1, description="looks without a better alignment before training stops")


class MetaSettings(_Settings):
    """Training on the true outer loss after inner steps (stage 2)."""

    steps: int = Field(default=40, ge=1)
    batch_size: int = Field(default=8, ge=1, description="texts a step, each with an adapter of its own")
    learning_rate: float = Field(default=1e-4, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    inner_norm: float = Field(default=0.3, gt=0, description="how far an inner step moves the adapter, on the mean")
    inner_steps: Literal[1, 2] = Field(default=1, description="of two, the second is differentiated")
    retention: float = Field(default=0.0, ge=0, description="λ of KL(base ‖ adapted) on anchor texts")
    validate_every: int = Field(default=10, ge=1)
    patience: int = Field(default=3, ge=1)
