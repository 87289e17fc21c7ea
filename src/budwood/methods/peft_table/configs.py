"""From settings with roles to PEFT's own configurations with a model's module names."""

from __future__ import annotations

from peft import IA3Config, LoraConfig, PrefixTuningConfig, PromptTuningConfig, TaskType, VeraConfig
from transformers import PreTrainedModel

from budwood.errors import NotSupportedError
from budwood.methods.peft_table.settings import (
    Ia3Settings,
    LoraSettings,
    PrefixSettings,
    PromptSettings,
    VeraSettings,
)
from budwood.models import find_sites, resolve_targets
from budwood.tuning.targets import stores_transposed, task_type


def lora(settings: LoraSettings, model: PreTrainedModel, *, use_dora: bool = False) -> LoraConfig:
    """Return PEFT's configuration of LoRA, or of DoRA, which PEFT makes a part of it."""
    alpha = 2 * settings.rank if settings.alpha is None else settings.alpha
    targets = _targets(settings.targets, model)
    return LoraConfig(
        r=settings.rank,
        lora_alpha=int(alpha) if float(alpha).is_integer() else alpha,
        lora_dropout=settings.dropout,
        target_modules=targets,
        layers_to_transform=settings.layers,
        fan_in_fan_out=stores_transposed(model, targets),
        use_dora=use_dora,
        task_type=task_type(model),
    )


def vera(settings: VeraSettings, model: PreTrainedModel) -> VeraConfig:
    """Return PEFT's configuration of VeRA. A and B are saved with it: no generator is the same for ever."""
    targets = _targets(settings.targets, model)
    return VeraConfig(
        r=settings.rank,
        d_initial=settings.start,
        projection_prng_key=settings.projection_seed,
        save_projection=True,
        vera_dropout=settings.dropout,
        target_modules=targets,
        layers_to_transform=settings.layers,
        fan_in_fan_out=stores_transposed(model, targets),
        task_type=task_type(model),
    )


def ia3(settings: Ia3Settings, model: PreTrainedModel) -> IA3Config:
    """Return PEFT's configuration of (IA)³."""
    fused = "qkv" in {site.role for site in find_sites(model)}
    outputs = settings.targets if settings.targets is not None else ["qkv"] if fused else ["k", "v"]
    inputs = resolve_targets(model, settings.feed_forward) if settings.feed_forward else []
    targets = [*(resolve_targets(model, outputs) if outputs else []), *inputs]
    return IA3Config(
        target_modules=targets,
        feedforward_modules=inputs,
        fan_in_fan_out=stores_transposed(model, targets),
        task_type=task_type(model),
    )


def prompt(settings: PromptSettings, model: PreTrainedModel) -> PromptTuningConfig:
    """Return PEFT's configuration of prompt tuning."""
    return PromptTuningConfig(
        num_virtual_tokens=settings.tokens,
        prompt_tuning_init="SAMPLE_VOCAB" if settings.init == "vocabulary" else "RANDOM",
        task_type=_causal(model),
    )


def prefix(settings: PrefixSettings, model: PreTrainedModel) -> PrefixTuningConfig:
    """Return PEFT's configuration of prefix tuning, without the paper's MLP before the keys and values."""
    return PrefixTuningConfig(num_virtual_tokens=settings.tokens, task_type=_causal(model))


def _targets(wanted: list[str] | str, model: PreTrainedModel) -> list[str]:
    return resolve_targets(model, ["all"] if isinstance(wanted, str) else wanted)


def _causal(model: PreTrainedModel) -> TaskType:
    """Return the task of a causal language model, the one kind that a soft prompt is tried with here."""
    if task_type(model) != TaskType.CAUSAL_LM:
        raise NotSupportedError(
            f"a soft prompt for {type(model).__name__}",
            wanted="a causal language model",
            action="use a tuner that changes weights, such as gift or lora",
        )
    return TaskType.CAUSAL_LM
