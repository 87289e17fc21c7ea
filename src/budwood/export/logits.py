"""What a model answers to probe inputs: the logits that two loads of one adapter are compared by."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

SENTENCES = (
    "The committee met on Tuesday to discuss the new plan for the river.",
    "Most people agreed that the bridge should be repaired first.",
    "Nobody knew how much it would cost, but the mayor promised to publish the figures in spring.",
    "Water boils at 100 degrees Celsius at sea level and earlier on a mountain.",
    "She bought three apples, two pears and a loaf of bread for 7.40 euros.",
    "def mean(values): return sum(values) / len(values)",
    "Le train de Lyon arrive à huit heures et repart à neuf heures vingt.",
    "Translate the following sentence into German and explain the grammar.",
)


def probe_inputs(vocabulary: PreTrainedTokenizerBase | int, seed: int = 0) -> Int[Tensor, "4 16"]:
    """Return four sequences of 16 token ids, the same for the same seed; no padding and no special tokens.

    Args:
        vocabulary: a tokenizer, which gives ordinary sentences; or the number of ids, which gives random ids.
            Take the tokenizer for a real model: random ids drive its activations to where rounding errors are several
            times as large, and the comparison is as much blunter.
        seed: of the choice.
    """
    generator = torch.Generator().manual_seed(seed)
    if isinstance(vocabulary, int):
        return torch.randint(vocabulary, (4, 16), generator=generator)
    chosen = torch.randperm(len(SENTENCES), generator=generator)[:4].tolist()
    rows: list[list[int]] = [vocabulary(SENTENCES[i], add_special_tokens=False)["input_ids"] for i in chosen]
    return torch.tensor([(ids * 16)[:16] for ids in rows])  # a sentence of fewer tokens is repeated


def adapted_logits(model: PeftModel, ids: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
    """Return the logits with the active adapter, on the CPU; the model is left in the mode it was in."""
    with _answering(model):
        return _logits(model, ids)


def exact_logits(model: PeftModel, ids: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
    """Return the logits with the active adapter computed in 64 bits, on a copy: three times the memory."""
    return adapted_logits(copy.deepcopy(model).double(), ids)


def base_logits(model: PeftModel, ids: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
    """Return the logits without any adapter, on the CPU; the model is left in the mode it was in."""
    with _answering(model), model.disable_adapter():
        return _logits(model, ids)


@contextmanager
def _answering(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode; at the end give every module its mode and every parameter its
    `requires_grad` back, which PEFT's `disable_adapter` changes."""
    training = [(module, module.training) for module in model.modules()]
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in training:
            module.training = mode
        for parameter, wanted in trained:
            parameter.requires_grad_(wanted)


def _logits(model: PeftModel, ids: Tensor) -> Tensor:
    base = model.get_base_model()
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if base.config.is_encoder_decoder else {})
    return model(**inputs).logits.cpu().contiguous()
