"""Tiny models with an adapter whose parameters are random, as if they had been trained."""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from torch import nn

from budwood.export.card import CardFacts
from tests import tiny

CARD = CardFacts(method="lora", base="org/tiny")


def trained(config: PeftConfig, model: nn.Module | None = None, seed: int = 1) -> PeftModel:
    """`model` (a tiny Llama) with the adapter of `config`, its parameters drawn from a normal distribution."""
    made = get_peft_model(model or tiny.llama(), config)
    torch.manual_seed(seed)
    for name, parameter in made.named_parameters():
        if "lora_" in name or parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    return made.eval()


def lora(**changes: object) -> LoraConfig:
    """A LoRA of rank 4 on q_proj."""
    return LoraConfig(**({"r": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | changes))
