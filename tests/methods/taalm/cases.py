"""Tiny models with adapters, and pairs of texts and questions for them."""

from __future__ import annotations

import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from torch import Tensor

from budwood.data.offsets import OffsetTokens
from budwood.data.probes import encode_probes
from budwood.data.problems import Origin
from budwood.data.synthetic import generate
from budwood.methods.taalm.lessons import Lesson
from budwood.methods.taalm.passages import Passage, from_texts
from budwood.tuning.attach import quiet_peft
from tests import tiny

LENGTHS, ANSWERS = (12, 8, 10), (3, 1, 2)


def gpt2_lora(*, fresh: bool = False, **changes) -> PeftModel:
    """An all-fp64 GPT-2 with eager attention: no layer of it works in fp32. LoRA on c_attn, at random unless fresh."""
    base = tiny.gpt2().double()
    base.set_attn_implementation("eager")
    config = LoraConfig(r=3, target_modules=["c_attn"], fan_in_fan_out=True, **changes)
    with quiet_peft():
        torch.manual_seed(1)
        model = get_peft_model(base.requires_grad_(False), config).double()
    return model if fresh else stirred(model)


def llama(config: LoraConfig | IA3Config, **changes) -> PeftModel:
    """A Llama in fp32, with PEFT's usual attention unless said otherwise."""
    with quiet_peft():
        torch.manual_seed(1)
        return get_peft_model(tiny.llama(**changes).requires_grad_(False), config)


@torch.no_grad()
def stirred(model: PeftModel) -> PeftModel:
    """Move every trained parameter a little."""
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model


def evidence() -> dict[str, Tensor]:
    """Three texts of different lengths, padded on the right."""
    return _batch(LENGTHS, (1, 1, 1), seed=3)


def probes() -> dict[str, Tensor]:
    """Three questions, with labels at the answers, which stand at the end."""
    return _batch((7, 7, 7), [7 - count for count in ANSWERS], seed=4)


def _batch(lengths, starts, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 256, (len(lengths), max(lengths)), generator=generator)
    place = torch.arange(max(lengths))
    inside = place < torch.tensor(lengths)[:, None]
    labelled = inside & (place >= torch.tensor(starts)[:, None])
    return {"input_ids": ids, "attention_mask": inside.long(), "labels": torch.where(labelled, ids, -100)}


def weights(dtype: torch.dtype = torch.float64) -> Tensor:
    """Random weights at the labelled tokens that something stands before."""
    drawn = torch.rand(3, max(LENGTHS), generator=torch.Generator().manual_seed(5), dtype=dtype)
    return drawn * scored().to(dtype)


def scored() -> Tensor:
    mask = evidence()["labels"] != -100
    mask[:, 0] = False
    return mask


def passages(texts: list[str], tokenizer=None) -> list[Passage]:
    origins = [Origin("texts", line) for line in range(1, len(texts) + 1)]
    return from_texts(texts, origins, OffsetTokens(tokenizer or tiny.tokenizer()))


def lessons(count: int, seed: int = 0) -> list[Lesson]:
    """Invented facts whose J_t is 1 at the object and a little noise elsewhere."""
    tokens = OffsetTokens(tiny.tokenizer())
    facts = [fact for fact in generate(6 * count, seed) if len(fact.evidence) < 120][:count]
    texts = from_texts([fact.evidence for fact in facts], [fact.origin for fact in facts], tokens)
    asked = encode_probes([fact.schematic for fact in facts], tokens)
    found, generator = [], torch.Generator().manual_seed(seed)
    for fact, text, probe in zip(facts, texts, asked, strict=True):
        start, stop = fact.object_span
        inside = torch.tensor([max(start, a) < min(stop, b) for a, b in text.spans])
        noise = 0.1 * torch.randn(len(inside), generator=generator)
        found.append(Lesson(text, probe, torch.where(inside, 1.0, noise)))
    return found
