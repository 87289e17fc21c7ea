"""What every tuner's configuration needs to know about a base model."""

from __future__ import annotations

from peft import TaskType
from transformers import PreTrainedModel


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
