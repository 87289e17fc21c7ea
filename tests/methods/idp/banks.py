"""Tiny bases of five architectures, prompts saved by PEFT, and naive forms to compare with."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftModel, PromptTuningConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from budwood.methods.idp.bank import PromptBank
from budwood.tuning.attach import quiet_peft
from tests import tiny

LENGTHS = (3, 5, 9)
SMALL = dict(vocab_size=259, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=256)
SPECIAL = dict(bos_token_id=0, eos_token_id=256, pad_token_id=257)

# Four rows of 4 to 9 tokens.
TEXTS = [
    [7, 30, 99, 4, 61],
    [200, 3, 3, 17, 45, 46, 47, 48, 90],
    [81, 82, 150, 12],
    [5, 140, 33, 21, 8, 111, 64],
]


def qwen2() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen2Config(intermediate_size=48, num_key_value_heads=2, initializer_range=0.2, **SMALL, **SPECIAL)
    return Qwen2ForCausalLM(config).eval()


def neox() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPTNeoXForCausalLM(GPTNeoXConfig(intermediate_size=48, initializer_range=0.2, **SMALL, **SPECIAL)).eval()


def opt() -> PreTrainedModel:
    torch.manual_seed(0)
    return OPTForCausalLM(OPTConfig(ffn_dim=48, word_embed_proj_dim=32, init_std=0.2, **SMALL, **SPECIAL)).eval()


MODELS = {"llama": tiny.llama, "qwen2": qwen2, "neox": neox, "opt": opt, "gpt2": tiny.gpt2}
ROTARY = ("llama", "qwen2", "neox")


def save_prompts(folder: Path, lengths: tuple[int, ...] = LENGTHS, model: PreTrainedModel | None = None) -> list[Path]:
    """Save random prompts with PEFT; the folders are called p0, p1, …"""
    places = []
    for number, length in enumerate(lengths):
        config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=length, prompt_tuning_init="RANDOM")
        with quiet_peft():
            made = get_peft_model(tiny.llama() if model is None else model, config)
        torch.manual_seed(100 + number)
        nn.init.normal_(made.prompt_encoder["default"].embedding.weight, std=0.6)
        with quiet_peft():
            made.save_pretrained(folder / f"p{number}", save_embedding_layers=False)
        places.append(folder / f"p{number}")
    return places


def make_bank(folder: Path, name: str = "llama", lengths: tuple[int, ...] = LENGTHS, **options: object) -> PromptBank:
    return PromptBank.from_adapters(MODELS[name](), save_prompts(folder, lengths), **options)


def batch(texts: list[list[int]] = TEXTS, *, left: bool = True) -> tuple[Tensor, Tensor]:
    """Ids and mask, padded on one side with an id that would change everything if it were read."""
    longest = max(map(len, texts))
    rows, masks = [], []
    for text in texts:
        pads, zeros = [123] * (longest - len(text)), [0] * (longest - len(text))
        rows.append([*pads, *text] if left else [*text, *pads])
        masks.append([*zeros, *([1] * len(text))] if left else [*([1] * len(text)), *zeros])
    return torch.tensor(rows), torch.tensor(masks)


def vectors(bank: PromptBank, number: int) -> Tensor:
    return bank._runtime.prompts[number].vectors


@torch.no_grad()
def plain_logits(bank: PromptBank, number: int, text: list[int]) -> Tensor:
    """Logits of the text behind one prompt by plain prompt tuning: one sequence of vectors, no cache, no padding."""
    embedded = bank.model.get_input_embeddings()(torch.tensor(text))
    joined = torch.cat([vectors(bank, number).to(embedded.dtype), embedded])
    return bank.model(inputs_embeds=joined[None], use_cache=False).logits[0, len(vectors(bank, number)) :]


def plain_greedy(bank: PromptBank, number: int, text: list[int], tokens: int) -> list[int]:
    """Greedy decoding with whole forward passes."""
    ids = list(text)
    for _ in range(tokens):
        ids.append(int(plain_logits(bank, number, ids)[-1].argmax()))
    return ids[len(text) :]


def peft_model(bank: PromptBank, folder: Path) -> PeftModel:
    """The same prompt as PEFT loads it."""
    return PeftModel.from_pretrained(bank.model, folder).eval()


@torch.no_grad()
def naive_scores(
    bank: PromptBank, text: list[int], *, aligned: bool = True, per_key: bool = True, skip: int = 0
) -> Tensor:
    """Scores of one text, (layers, m): one sequence with a block mask, eager attention, and means by loops.

    Args:
        aligned: prompts end where the text begins; else they are laid end to end (the mutation that must fail).
    """
    prompts = [vectors(bank, number) for number in range(len(bank))]
    lengths, text_length = [len(one) for one in prompts], len(text)
    total, longest = sum(lengths), max(lengths)
    embedded = bank.model.get_input_embeddings()(torch.tensor(text))
    joined = torch.cat([*(one.to(embedded.dtype) for one in prompts), embedded])[None]
    allowed = torch.zeros(total + text_length, total + text_length, dtype=torch.bool)
    positions: list[int] = []
    for i, n in enumerate(lengths):
        begin = sum(lengths[:i])
        allowed[begin : begin + n, begin : begin + n] = torch.ones(n, n).tril().bool()
        positions += range(longest - n, longest) if aligned else range(begin, begin + n)
    allowed[total:, :total] = True
    allowed[total:, total:] = torch.ones(text_length, text_length).tril().bool()
    positions += range(longest, longest + text_length) if aligned else range(total, total + text_length)
    mask = torch.zeros(allowed.shape, dtype=joined.dtype).masked_fill(~allowed, torch.finfo(joined.dtype).min)
    bank.model.set_attn_implementation("eager")
    found = bank.model(
        inputs_embeds=joined,
        attention_mask=mask[None, None],
        position_ids=torch.tensor(positions)[None],
        output_attentions=True,
        use_cache=False,
    ).attentions
    bank.model.set_attn_implementation("sdpa")
    scores = torch.zeros(len(found), len(lengths), dtype=torch.float64)
    for layer, attention in enumerate(found):
        for i, n in enumerate(lengths):
            begin = sum(lengths[:i])
            columns = attention[0, :, total:, begin + skip : begin + n].double()
            scores[layer, i] = columns.sum(-1).mean() / (n - skip if per_key else 1)
    return scores
