"""Tokenizers and chat templates for the tests of rendering: each shows one thing that real ones do."""

from __future__ import annotations

import random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from budwood.data.problems import Origin
from budwood.data.rows import Message, Row
from tests.tiny import CHATML

# The end of a turn is no eos, and BOS is written by the template.
HEADERS = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|head|>' + m['role'] + '<|body|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|body|>\n\n' }}{% endif %}"
)
# BOS in the template, no generation prompt, no system role, roles must alternate, a space before each answer.
BRACKETS = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
# Earlier answers lose what stands before </think>.
FORGETS = (
    "{% for m in messages %}{% set text = m['content'] %}"
    "{% if m['role'] == 'assistant' and not loop.last %}{% set text = text.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + text + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# The template marks what is generated, and puts an empty thought before each last answer.
MARKED = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% generation %}{% if loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Nothing ends an answer but the next heading.
ENDLESS = (
    "{% for m in messages %}{{ '### ' + m['role'] + '\n' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant\n' }}{% endif %}"
)
# An end of turn, and eos after the whole conversation only.
TWO_ENDS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|eot_id|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% else %}{{ eos_token }}{% endif %}"
)
# A mark that is an added token, but not special, stands between an answer and its end.
CLOSES = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '</answer>' }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Asks for an answer in another way than it writes one.
OPENS_ELSEWHERE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)

TEMPLATES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "brackets": BRACKETS,
    "forgets": FORGETS,
    "marked": MARKED,
    "endless": ENDLESS,
    "two ends": TWO_ENDS,
    "closes": CLOSES,
    "none": None,
}
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|head|>", "<|body|>", "<|eot_id|>"]
# Merges that join a heading to its answer ("\n" + "a"), a colon to a space, and runs of spaces and line feeds.
MERGES = [("Ċ", "Ċ"), ("Ċ", "a"), ("Ġ", "Ġ"), ("Ġ", "a"), (":", "Ġ"), ("b", "a"), ("]", "Ġ"), ("Ċ", "Ġ")]


def byte_tokenizer(
    template: str | None = None, *, bos: bool = False, merges=(), words: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE; with `bos` it adds <s> by itself. Its merges cross white space unless `words` cuts there."""
    vocabulary = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
    core.decoder = decoders.ByteLevel()
    return _finished(core, template, bos)


def space_tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """Words of characters with a space put before the start of a text, as SentencePiece models have it; adds <s>."""
    characters = ["▁", *(chr(i) for i in range(33, 127)), "\n", "é", "日"]
    core = Tokenizer(models.Unigram([("<unk>", 0.0), *((char, -1.0) for char in characters)], unk_id=0))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    core.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    return _finished(core, template, True)


def _finished(core: Tokenizer, template: str | None, bos: bool) -> PreTrainedTokenizerFast:
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<s>", "</s>", *SPECIALS)])
    core.add_tokens([AddedToken("</answer>", special=False, normalized=False)])
    if bos:
        pair = ("<s>", core.token_to_id("<s>"))
        core.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[pair])
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", extra_special_tokens=list(SPECIALS)
    )
    made.chat_template = template
    return made


class SlowTokenizer(PreTrainedTokenizer):
    """A tokenizer of characters in Python, without offsets."""

    def __init__(self, template: str | None = None) -> None:
        self._first = 0
        super().__init__(eos_token="<|im_end|>", extra_special_tokens=["<|im_start|>"])
        self.chat_template = template

    @property
    def vocab_size(self) -> int:
        return 0x3000

    def get_vocab(self) -> dict[str, int]:
        return {chr(i): i for i in range(self.vocab_size)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **_: object) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token)

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


_PIECES = ["a", "b", " ", "  ", "\n", "\n\n", "ba", "12", ":", "?", "é", "日本", "</think>", "] "]


def text(rng: random.Random, pieces=_PIECES) -> str:
    """A random text, not blank, with white space, breaks and accents anywhere but at its ends in half the cases."""
    inner = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 8)))
    made = inner + rng.choice("abé") + rng.choice(["", " ", "\n"]) if rng.random() < 0.5 else f"b{inner}a"
    return made


def row(*contents: str, continues: bool = False, weights=None) -> Row:
    """A row of user and assistant in turn; each answer is trained."""
    messages = tuple(
        Message("assistant" if i % 2 else "user", content, trained=bool(i % 2)) for i, content in enumerate(contents)
    )
    return Row(messages, (contents[-1],), Origin("rows.jsonl", 1), weights=weights, continues=continues)
