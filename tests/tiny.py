"""Tiny models and tokenizers, made at test time: 2 layers, 32 wide, a vocabulary of bytes and a few specials."""

from __future__ import annotations

import torch
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer(chat_template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 259 words: 256 bytes, `<|im_start|>`, `<|im_end|>` (the end token) and `<pad>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<pad>",
        additional_special_tokens=["<|im_start|>"],
    )
    made.chat_template = chat_template
    return made


def llama(seed: int = 0, **changes: object) -> LlamaForCausalLM:
    """A Llama of 2 layers, hidden 32, 4 query and 2 key heads, feed-forward 48, vocabulary 259."""
    torch.manual_seed(seed)
    settings: dict[str, object] = dict(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=257,
    )
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval()


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    """A GPT-2 of 2 layers (Conv1D layers with biases, fused qkv), hidden 32."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.2, pad_token_id=257
    )
    model = GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def checkpointed(model: PeftModel) -> PeftModel:
    """Let the model compute activations a second time in the backward pass."""
    base = model.get_base_model()
    new = hasattr(base, "activation_checkpointing_enable")  # its name in newer versions
    enable = base.activation_checkpointing_enable if new else base.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    model.enable_input_require_grads()
    return model


def save(model: torch.nn.Module, folder, chat_template: str | None = CHATML):
    """Save model and tokenizer as an ordinary folder, and return the folder."""
    model.save_pretrained(folder)
    tokenizer(chat_template).save_pretrained(folder)
    return folder
