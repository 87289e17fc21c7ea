"""What every tuner's configuration needs to know about a base model."""

from __future__ import annotations

from collections.abc import Iterable

from peft import TaskType
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from budwood.models import matching_sites


def task_type(model: PreTrainedModel) -> TaskType | None:
    """Return PEFT's word for what the model does; None where PEFT has no special wrapper."""
    name = type(model).__name__
    if model.config.is_encoder_decoder and name.endswith("ForConditionalGeneration"):
        return TaskType.SEQ_2_SEQ_LM
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return TaskType.CAUSAL_LM
    if name.endswith("ForSequenceClassification"):
        return TaskType.SEQ_CLS
    return TaskType.TOKEN_CLS if name.endswith("ForTokenClassification") else None


def stores_transposed(model: PreTrainedModel, targets: Iterable[str]) -> bool:
    """Whether the targeted layers keep their weight as (in, out), as GPT-2's Conv1D does."""
    sites = matching_sites(model, targets)
    return any(isinstance(model.get_submodule(site.name), Conv1D) for site in sites)
