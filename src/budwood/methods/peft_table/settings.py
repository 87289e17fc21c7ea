"""Settings of PEFT's own tuners. Names of modules may be roles: q k v o gate up down."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from budwood.tuning.protocol import TunerSettings


class LoraSettings(TunerSettings):
    """Settings of LoRA."""

    rank: int = Field(16, ge=1, description="rank r of BA")
    alpha: float | None = Field(None, description="none: 2 x rank; the update is scaled by alpha / rank")
    targets: list[str] | Literal["all"] = Field("all", description="linear layers to adapt, by role or by name")
    layers: list[int] | None = Field(None, description="indices of the layers to adapt; all by default")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the vector that A reads")


class DoraSettings(LoraSettings):
    """Settings of DoRA: those of LoRA."""


class VeraSettings(TunerSettings):
    """Settings of VeRA."""

    rank: int = Field(256, ge=1, description="rows of the frozen random A; far more than a LoRA's rank")
    targets: list[str] | Literal["all"] = Field("all", description="linear layers to adapt, by role or by name")
    layers: list[int] | None = Field(None, description="indices of the layers to adapt; all by default")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the vector that A reads")
    start: float = Field(0.1, description="what the entries of d start from (table 6c of the paper: at most 0.1)")
    projection_seed: int = Field(0, ge=0, description="seed of the frozen A and B; one for all adapters of a base")


class Ia3Settings(TunerSettings):
    """Settings of (IA)³."""

    targets: list[str] | None = Field(
        None, description="layers whose output is scaled, by role or by name; none: keys and values (qkv where fused)"
    )
    feed_forward: list[str] = Field(["down"], description="layers whose input is scaled, by role or by name")


class PromptSettings(TunerSettings):
    """Settings of prompt tuning."""

    tokens: int = Field(16, ge=1, description="number of vectors in front of the text")
    init: Literal["vocabulary", "random"] = Field(
        "vocabulary", description="start from the embeddings of random tokens, or from normal noise"
    )


class PrefixSettings(TunerSettings):
    """Settings of prefix tuning."""

    tokens: int = Field(16, ge=1, description="number of key and value pairs in front of the text, in each layer")
