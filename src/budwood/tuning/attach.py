"""Puts a tuner onto a base model."""

from __future__ import annotations

import warnings

import torch
from peft import PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from budwood.errors import BudwoodError, ConfigError
from budwood.tuning.protocol import Tuner, TunerSettings


def attach(model: PreTrainedModel, tuner: Tuner, settings: TunerSettings, *, seed: int) -> PeftModel:
    """Return `model` with a fresh adapter called "default"; PEFT must know the tuner (`budwood.peft.register`).

    The base is frozen and changed in place: its adapted layers are wrapped. Adapter parameters are fp32 whatever the
    base's precision.

    Args:
        seed: set right before the adapter's parameters are drawn, so that they depend on nothing else.

    Raises:
        ConfigError: settings that do not fit this model.
    """
    config = tuner.make_config(settings, model)
    torch.manual_seed(seed)
    try:
        with quiet_peft():
            return get_peft_model(model, config)
    except BudwoodError:
        raise
    except ValueError as error:  # PEFT's word for settings that do not fit
        raise ConfigError(f"the tuner {tuner.name} does not fit this model: {error}") from error


class quiet_peft(warnings.catch_warnings):
    """Silence what PEFT warns of on every call although nothing is wrong."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.filterwarnings(
            "ignore", message=".*is_gradient_checkpointing.* is deprecated", category=FutureWarning
        )


def count_parameters(model: nn.Module) -> int:
    """Return how many numbers are trained; a shared one counts once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def adapted_layers(model: nn.Module) -> frozenset[str] | None:
    """Return the names of the layers that an adapter changes; None where it changes none, such as a soft prompt."""
    if not isinstance(model, PeftModel) or model.active_peft_config.is_prompt_learning:
        return None
    return frozenset(model.base_model.targeted_module_names)
