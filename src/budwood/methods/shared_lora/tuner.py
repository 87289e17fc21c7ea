"""Shared LoRA as a PEFT tuner. Paper: an ablation of https://arxiv.org/abs/2312.00700; ΔW_l = s B A for all layers l
of a kind, A (r, d_in) and B (d_out, r) learned once. The skeleton is in `tuning/`; here is only what is its own."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from budwood.methods.shared_lora.config import SharedLoraConfig
from budwood.tuning.edits import Place
from budwood.tuning.groups import Grouping
from budwood.tuning.shared_layer import SharedLayer
from budwood.tuning.shared_map import SharedMap
from budwood.tuning.shared_tuner import SharedTuner


class SharedPair(SharedMap):
    """A and B of one kind of layer, started as LoRA starts them: A uniform in ±1/√d_in, B = 0."""

    def __init__(self, in_features: int, out_features: int, rank: int) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.empty(rank, in_features))
        self.B = nn.Parameter(torch.zeros(out_features, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    @property
    def up(self) -> Tensor:
        return self.B

    @property
    def down(self) -> Tensor:
        return self.A


class SharedLoraLayer(SharedLayer):
    """A linear layer with a shared pair beside it."""

    attribute_of: ClassVar[dict[Place, str]] = {"parallel": "shared_lora_pair"}
    adapter_layer_names: tuple[str, ...] = ("shared_lora_pair",)


class SharedLoraModel(SharedTuner):
    """Injects shared LoRA into a model; `peft.get_peft_model(model, SharedLoraConfig(...))` builds it."""

    prefix: str = "shared_lora_"
    tuner_layer_cls = SharedLoraLayer

    def make_map(self, config: SharedLoraConfig, place: Place, sizes: tuple[int, int], rank: int) -> SharedPair:
        return SharedPair(*sizes, rank)

    def places(self, config: SharedLoraConfig, kind: str) -> tuple[Place, ...]:
        return ("parallel",)

    def grouping(self, config: SharedLoraConfig) -> Grouping:
        return Grouping("type")

    def ranks(self, config: SharedLoraConfig) -> tuple[int, dict[str, int]]:
        return config.r, {}

    def spec_values(self, config: SharedLoraConfig, rank: int) -> tuple[float, float, bool]:
        return config.lora_alpha / rank, config.lora_dropout, False
