"""Batched generation that depends on nothing but its arguments.

`model.generate` does the decoding, with the key-value cache. Around it:

- a soft prompt goes through `tuning.soft_prompts`: PEFT's own generation is wrong for it;
- the model's own `generation_config` (a repetition penalty, a temperature) does not take part: greedy means the most
  likely token at each step;
- sampling adds Gumbel noise to the logits and takes the largest, which is drawing from the softmax. The noise of each
  prompt comes from a generator of its own, so the process's random state is neither read nor moved, and a prompt gets
  the same text in any batch.

In fp32 a batch of prompts of different lengths gives what each prompt gives alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from budwood.errors import DataError, UsageError
from budwood.evals._running import BatchSize, Progress, context_length, device_of, evaluating, make_batches
from budwood.evals._streaming import OnText, TextStream
from budwood.tuning.soft_prompts import SoftPrompt, has_soft_prompt, refuse_soft_prompt

if TYPE_CHECKING:
    from budwood.data.render import Renderer

BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}  # tokens a batch, prompts and answers, padded


@dataclass(frozen=True)
class Sampling:
    """How to draw a token instead of taking the most likely one.

    Attributes:
        temperature: divides the logits; above 0.
        top_k: draw from the k most likely tokens; None keeps all.
        top_p: draw from the fewest tokens whose probability reaches this, in (0, 1]; None keeps all.
        seed: the same seed draws the same tokens.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Generation:
    """What a model wrote after one prompt.

    Attributes:
        ids: the tokens, without the end token.
        text: the same, decoded.
        ended: whether an end token came before the limit.
    """

    ids: tuple[int, ...]
    text: str
    ended: bool


def generate(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    renderer: Renderer,
    *,
    max_new_tokens: int,
    batch_size: BatchSize = "auto",
    sampling: Sampling | None = None,
    progress: Progress | None = None,
) -> list[Generation]:
    """Continue each prompt until an end token or `max_new_tokens`, in the order given.

    A prompt that leaves less room than `max_new_tokens` in the model's context gets what room there is.

    Args:
        model: a causal language model, bare, a `PeftModel` or `Prompted`; its mode and its `generation_config` are
            restored.
        prompts: token ids, each not empty.
        renderer: gives the end tokens and decodes.
        max_new_tokens: the limit for each prompt, at least 1.
        batch_size: prompts a batch, or "auto".
        sampling: None is greedy decoding.
        progress: called with ("generation", prompts done, prompts) after each batch.

    Raises:
        UsageError: a limit, a batch size or a sampling setting out of range.
        DataError: a prompt that is empty or fills the context.
        NotSupportedError: the adapter is a soft prompt that this base cannot generate with.
        OutOfMemoryError: a batch did not fit.
    """
    refuse_soft_prompt(model)  # before any work
    limits = [_limit(prompt, max_new_tokens, context_length(model)) for prompt in prompts]
    if sampling is not None:
        _check(sampling)
    found: dict[int, Generation] = {}
    with evaluating(model), _plain_generation(model):
        decoder = _Decoder(model, renderer, sampling)
        for batch, limit in _batches(prompts, limits, batch_size, device_of(model)):
            found.update(zip(batch, decoder.run([prompts[i] for i in batch], batch, limit), strict=True))
            if progress is not None:
                progress("generation", len(found), len(prompts))
    return [found[i] for i in range(len(prompts))]


def stream(
    model: nn.Module,
    prompt: Sequence[int],
    renderer: Renderer,
    *,
    max_new_tokens: int,
    on_text: OnText,
    sampling: Sampling | None = None,
) -> Generation:
    """Continue one prompt as `generate` does, and pass its text on while it is written.

    Args:
        on_text: called with each new piece of text; the pieces joined are the text of the result.

    The other arguments and the errors are those of `generate`.
    """
    refuse_soft_prompt(model)
    limit = _limit(prompt, max_new_tokens, context_length(model))
    if sampling is not None:
        _check(sampling)
    streamer = TextStream(renderer, on_text)
    with evaluating(model), _plain_generation(model):
        (made,) = _Decoder(model, renderer, sampling).run([prompt], [0], limit, streamer)
    streamer.finish(made.text)
    return made


def _limit(prompt: Sequence[int], max_new_tokens: int, context: int | None) -> int:
    if max_new_tokens < 1:
        raise UsageError(f"a limit of {max_new_tokens} new tokens", wanted="1 or more")
    if not prompt:
        raise DataError("a prompt without tokens", wanted="at least one token", action="give some text to continue")
    room = max_new_tokens if context is None else min(max_new_tokens, context - len(prompt))
    if room < 1:
        raise DataError(
            f"a prompt of {len(prompt)} tokens",
            wanted=f"fewer than {context}: the model's context must hold prompt and answer",
            action="shorten the prompt",
        )
    return room


def _batches(
    prompts: Sequence[Sequence[int]], limits: Sequence[int], batch_size: BatchSize, device: torch.device
) -> Iterator[tuple[list[int], int]]:
    """Yield the places of the prompts of each batch, and their limit; prompts with less room go apart."""
    budget = BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])
    for limit, group in groupby(sorted(range(len(prompts)), key=lambda i: limits[i]), key=lambda i: limits[i]):
        members = list(group)
        for batch in make_batches([len(prompts[i]) + limit for i in members], batch_size, budget):
            yield [members[i] for i in batch], limit


@contextlib.contextmanager
def _plain_generation(model: nn.Module) -> Iterator[None]:
    """Put an empty `generation_config` in place of the model's, whose values would fill what we leave unset."""
    owner = model.get_base_model() if isinstance(model, PeftModel) else model
    kept = owner.generation_config
    owner.generation_config = GenerationConfig()
    try:
        yield
    finally:
        owner.generation_config = kept


class _Decoder:
    """Decodes batches of prompts; holds what is the same for all of them."""

    def __init__(self, model: nn.Module, renderer: Renderer, sampling: Sampling | None) -> None:
        self.model = SoftPrompt(model) if has_soft_prompt(model) else model
        self.renderer = renderer
        self.sampling = sampling
        self.device = device_of(model)

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        numbers: Sequence[int],
        limit: int,
        streamer: TextStream | None = None,
    ) -> list[Generation]:
        """Continue `prompts`; `numbers` are their places in the whole list and choose their random streams.

        A `streamer` takes the ids of one prompt as they come.
        """
        ends = sorted(self.renderer.end_token_ids)
        input_ids, attention_mask = (part.to(self.device) for part in _pad_left(prompts))
        settings = GenerationConfig(
            max_new_tokens=limit, do_sample=False, eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0
        )
        written = self.model.generate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            generation_config=settings,
            logits_processor=_processors(self.sampling, numbers, self.device),
            streamer=streamer,
        )
        return [self._finish(ids) for ids in written[:, input_ids.shape[1] :].tolist()]

    def _finish(self, ids: list[int]) -> Generation:
        end = next((place for place, token in enumerate(ids) if token in self.renderer.end_token_ids), None)
        return Generation(tuple(ids[:end]), self.renderer.decode(ids), end is not None)


def _pad_left(prompts: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b t"]]:
    """Return input ids and attention mask, padded on the left: a decoder writes on from the last position.

    `generate` derives the positions from the mask. The padding id is masked, so any will do.
    """
    longest = max(map(len, prompts))
    input_ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    attention_mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(input_ids), torch.tensor(attention_mask)


def _processors(sampling: Sampling | None, numbers: Sequence[int], device: torch.device) -> LogitsProcessorList:
    """Return what is done to the logits before the largest is taken: nothing, for greedy decoding."""
    processors = LogitsProcessorList()
    if sampling is None:
        return processors
    processors.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k is not None:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        processors.append(TopPLogitsWarper(float(sampling.top_p)))
    processors.append(_GumbelNoise(sampling.seed, numbers, device))
    return processors


def _check(sampling: Sampling) -> None:
    if not sampling.temperature > 0:
        raise UsageError(
            f"temperature {sampling.temperature}", wanted="a number above 0", action="leave sampling out to be greedy"
        )
    if sampling.top_k is not None and sampling.top_k < 1:
        raise UsageError(f"top_k {sampling.top_k}", wanted="1 or more")
    if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
        raise UsageError(f"top_p {sampling.top_p}", wanted="a number above 0 and at most 1")
    if sampling.seed < 0:
        raise UsageError(f"seed {sampling.seed}", wanted="0 or more")


class _GumbelNoise(LogitsProcessor):
    """Adds -log(E), E exponential: the largest sum falls on a token with its softmax probability."""

    def __init__(self, seed: int, numbers: Sequence[int], device: torch.device) -> None:
        self.generators = [_stream(seed, number, device) for number in numbers]

    def __call__(
        self, input_ids: Int[Tensor, "b t"], scores: Float[Tensor, "b vocabulary"]
    ) -> Float[Tensor, "b vocabulary"]:
        tiny = torch.finfo(scores.dtype).tiny
        noise = torch.stack([torch.empty_like(scores[0]).exponential_(generator=g) for g in self.generators])
        return scores - noise.clamp_min(tiny).log()


def _stream(seed: int, number: int, device: torch.device) -> torch.Generator:
    """Return the generator of prompt `number`: streams of different seeds and numbers are unrelated."""
    state = int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(state >> 1)  # torch takes 63 bits
