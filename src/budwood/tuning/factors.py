"""The exact LoRA factors of a trained adapter, module by module: ΔW = B A, the scale folded into B.

This is the layer protocol that export reads. Our layers implement `HasLoraFactors`; PEFT's own LoRA layers are read
here; every other kind of adapter is refused with the reason, before anything is written.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from peft import PeftConfig, PeftModel
from peft.tuners.adalora import AdaLoraLayer
from peft.tuners.lora.layer import LoraLayer, MultiheadAttention, ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from budwood.errors import NotSupportedError, UsageError, nearest

MERGE = "write the whole model with `budwood export --to merged`"

# Initialisations of PEFT's LoRA that subtract something from the base weight: B A is then a difference to a base that
# nobody else has. LoftQ replaces the base by its quantised twin.
CHANGES_THE_BASE = ("pissa", "olora", "corda", "lora_ga", "loftq")


class LoraFactors(NamedTuple):
    """ΔW = B A of one linear layer y = W x + b, in fp32; for transformers' Conv1D too, W is meant as (out, in)."""

    A: Float[Tensor, "r d_in"]
    B: Float[Tensor, "d_out r"]


@runtime_checkable
class HasLoraFactors(Protocol):
    """A tuner layer that knows its own exact factors."""

    def lora_factors(self, adapter: str) -> LoraFactors:
        """Return the factors of `adapter`; `NotSupportedError`, with the reason, where there are none."""


def lora_factors(model: PeftModel, adapter: str = "default") -> dict[str, LoraFactors]:
    """Return the exact factors of `adapter` by the name of each adapted module inside the base model.

    Args:
        model: a PEFT model, merged or not, on any device; it is not changed.
        adapter: the name of one of its adapters. Other adapters, active or not, are not part of the result.

    Raises:
        UsageError: no adapter has that name.
        NotSupportedError: the adapter does something that no LoRA can do; the message says what and where.
    """
    if adapter not in model.peft_config:
        raise UsageError(f"no adapter called {adapter!r}", wanted=nearest(adapter, model.peft_config))
    _refuse_config(model.peft_config[adapter])
    factors = {
        name: _factors_of(name, layer, adapter)
        for name, layer in model.get_base_model().named_modules()
        if isinstance(layer, BaseTunerLayer) and adapter in layer._get_available_adapters()
    }
    if not factors:
        raise NotSupportedError(
            f"no layer of the model carries the adapter {adapter!r} as a change of its weight",
            wanted="an adapter that changes weights",
            action="keep it as a PEFT folder; PEFT is what reads it",
        )
    return factors


def _refuse_config(config: PeftConfig) -> None:
    """Refuse what is visible in the configuration, so that the reason names the setting the user chose."""
    kind = config.peft_type.value
    if config.is_prompt_learning:
        raise NotSupportedError(
            f"{kind} learns input vectors, not a change of weights",
            wanted="an adapter that changes weights",
            action="keep it as a PEFT folder; PEFT is what reads it",
        )
    for reason in _reasons(config.to_dict()):
        raise NotSupportedError(f"{kind} adapter: {reason}", wanted="only pairs A, B of linear layers", action=MERGE)


def _reasons(settings: dict[str, Any]) -> list[str]:
    """Say which settings of a PEFT configuration have no place in a LoRA of plain A, B pairs."""
    reasons = []
    if kept := settings.get("modules_to_save"):
        reasons.append(f"modules_to_save holds whole modules ({', '.join(sorted(kept))})")
    if settings.get("bias", "none") != "none":
        reasons.append(f"trained biases (bias={settings['bias']!r})")
    if settings.get("trainable_token_indices"):
        reasons.append("trained token embeddings (trainable_token_indices)")
    if settings.get("layer_replication"):
        reasons.append("layer_replication gives the base more layers than it has")
    init = settings.get("init_lora_weights")
    if isinstance(init, str) and init.startswith(CHANGES_THE_BASE):
        reasons.append(f"init_lora_weights={init!r} changed the base weights, so B A is no difference to the base")
    return reasons


def _factors_of(name: str, layer: BaseTunerLayer, adapter: str) -> LoraFactors:
    if isinstance(layer, HasLoraFactors):
        factors = _own_factors(name, layer, adapter)
    elif isinstance(layer, LoraLayer):
        factors = _peft_factors(name, layer, adapter)
    else:
        raise _refusal(name, f"a {_kind(layer)} layer is not a pair of LoRA factors")
    assert factors.A.shape[0] == factors.B.shape[1], name
    return factors


def _own_factors(name: str, layer: HasLoraFactors, adapter: str) -> LoraFactors:
    try:
        return layer.lora_factors(adapter)
    except NotSupportedError as error:
        raise NotSupportedError(f"{name}: {error.got}", wanted=error.wanted, action=error.action) from error


def _peft_factors(name: str, layer: LoraLayer, adapter: str) -> LoraFactors:
    """Read one of PEFT's LoRA layers: nn.Linear, Conv1D or a quantised linear layer; the rest is refused."""
    if adapter in layer.lora_variant:
        raise _refusal(name, f"PEFT's variant {type(layer.lora_variant[adapter]).__name__} is not plain B A")
    if adapter in layer.lora_embedding_A:
        raise _refusal(name, "the adapter changes an embedding")
    if isinstance(layer, ParamWrapper):
        raise _refusal(name, f"the parameter {layer.parameter_name!r} is adapted, not a linear layer")
    linear = adapter in layer.lora_A and isinstance(layer.lora_A[adapter], nn.Linear)
    if not linear or isinstance(layer, AdaLoraLayer | MultiheadAttention):
        raise _refusal(name, f"a {_kind(layer)} layer is not a linear layer with factors A and B")
    if layer.lora_bias[adapter]:
        raise _refusal(name, "lora_bias=True trains a bias beside B")
    a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
    # `scaling` is the one number PEFT multiplies with: rsLoRA, rank and alpha patterns and set_scale are in it.
    return LoraFactors(A=_fp32(a), B=_fp32(b) * layer.scaling[adapter])


def _fp32(weight: Tensor) -> Tensor:
    return weight.detach().to(torch.float32)


def _refusal(module: str, reason: str) -> NotSupportedError:
    return NotSupportedError(f"{module}: {reason}", wanted="only pairs A, B of linear layers", action=MERGE)


def _kind(layer: BaseTunerLayer) -> str:
    """Return, for instance, `vera.Linear`: PEFT names most of its layers `Linear`."""
    return f"{type(layer).__module__.split('.')[-2]}.{type(layer).__name__}"
