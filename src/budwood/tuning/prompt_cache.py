"""Soft prompts as keys and values: computed once, then put in front of any text, for each row a prompt of its own.

A prompt of n vectors was trained at the positions 0 … n − 1, with the text from n on. Causal attention lets no prompt
see the text, so its keys and values belong to the prompt alone. Rows whose prompts differ in length share one cache
of n_max slots, as many as the longest prompt has, with the prompts aligned to its right end:

    slot       0 … n_max − n − 1    n_max − n … n_max − 1    n_max …
    mask       0                    1                        the mask of the text
    position   -                    0 … n − 1                n, n + 1, … where the mask shows a token

Each row then computes what its prompt alone would give it. PEFT's own `generate` does not: on transformers 5.24 it
inserts a soft prompt again at each step, or drops it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from budwood.errors import DataError


@dataclass(frozen=True, eq=False)
class PromptKeyValues:
    """What the layers of one model keep of one prompt of n vectors.

    Attributes:
        keys: of each layer, (heads, n, d).
        values: of each layer, (heads, n, d').
        first_logits: fp32 logits of the token right after the prompt, (vocabulary,); None for a prefix, which is
            made of keys and values and predicts nothing itself.
    """

    keys: tuple[Float[Tensor, "heads n d"], ...]
    values: tuple[Float[Tensor, "heads n d"], ...]
    first_logits: Float[Tensor, " vocabulary"] | None = None

    @property
    def tokens(self) -> int:
        """The length n."""
        return self.keys[0].shape[1]


@torch.no_grad()
def encode_prompt(model: PreTrainedModel, vectors: Float[Tensor, "n d"], *, start: int = 0) -> PromptKeyValues:
    """Return the keys and values of a prompt.

    Args:
        model: the base, in evaluation mode.
        vectors: the prompt; cast to the model's precision, as PEFT's forward does.
        start: the position of its first vector.
    """
    cache = DynamicCache()
    positions = torch.arange(start, start + len(vectors), device=model.device)
    output = model(
        inputs_embeds=vectors.to(model.device, model.dtype)[None],
        position_ids=positions[None],
        use_cache=True,
        **as_argument(model, cache),
    )
    keys, values = layers_of(cache)
    return PromptKeyValues(keys, values, output.logits[0, -1].float())


def layers_of(cache: DynamicCache) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return keys and values of the first row of a cache, layer by layer."""
    layers = cache.layers
    return tuple(layer.keys[0] for layer in layers), tuple(layer.values[0] for layer in layers)


def as_argument(model: nn.Module, cache: DynamicCache) -> dict[str, DynamicCache]:
    """Return the cache under the name that the model's forward has for it; transformers 5.24 changed it."""
    return {"cache" if takes(model, "cache") else "past_key_values": cache}


def takes(model: nn.Module, argument: str) -> bool:
    """Whether the model's forward has an argument of this name."""
    return argument in inspect.signature(model.forward).parameters


class PromptStack:
    """The m prompts of one model, aligned to the right end of n_max slots.

    Attributes:
        prompts: keys and values of each.
        lengths: n of each, (m,).
        slots: n_max, the length of the longest.
        mask: whether a prompt fills a slot, (m, n_max).
    """

    def __init__(self, prompts: Sequence[PromptKeyValues]) -> None:
        self.prompts = tuple(prompts)
        device = prompts[0].keys[0].device
        self.lengths = torch.tensor([prompt.tokens for prompt in prompts], device=device)
        self.slots = max(prompt.tokens for prompt in prompts)
        self.mask: Bool[Tensor, "m n"] = torch.arange(self.slots, device=device) >= self.slots - self.lengths[:, None]
        self._keys = [self._aligned(layer) for layer in zip(*(prompt.keys for prompt in prompts), strict=True)]
        self._values = [self._aligned(layer) for layer in zip(*(prompt.values for prompt in prompts), strict=True)]

    def _aligned(self, layer: Sequence[Float[Tensor, "heads n d"]]) -> Float[Tensor, "m heads slots d"]:
        # Zeros, not empty memory: a masked slot has weight 0, and 0 times NaN is NaN.
        return torch.stack([nn.functional.pad(one, (0, 0, self.slots - one.shape[1], 0)) for one in layer])

    def cache(self, selection: Int[Tensor, " b"]) -> DynamicCache:
        """Return a new cache whose row b holds prompt `selection[b]`."""
        return new_cache([k[selection] for k in self._keys], [v[selection] for v in self._values])

    def full_mask(self, selection: Int[Tensor, " b"], mask: Int[Tensor, "b t"]) -> Int[Tensor, "b n_t"]:
        """Return the mask over slots and text, (b, n_max + t)."""
        return torch.cat([self.mask[selection].to(mask.dtype), mask], dim=1)

    def positions(self, selection: Int[Tensor, " b"], mask: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
        """Return the positions of the text: n, n + 1, … of each row's prompt; pads get one that nobody looks at."""
        return self.lengths[selection][:, None] + (mask.long().cumsum(1) - 1).clamp_min(0)


def new_cache(keys: Sequence[Tensor], values: Sequence[Tensor]) -> DynamicCache:
    """Return a cache with these keys and values, (b, heads, slots, d) for each layer."""
    cache = DynamicCache()
    for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
        cache.update(key, value, layer)
    return cache


@torch.no_grad()
def run_prompted(
    model: PreTrainedModel,
    stack: PromptStack,
    selection: Int[Tensor, " b"],
    input_ids: Int[Tensor, "b t"],
    mask: Int[Tensor, "b t"],
    **options: Any,
) -> tuple[Any, DynamicCache]:
    """Run each row behind its prompt.

    Args:
        selection: the prompt of each row.
        mask: 1 on tokens, 0 on pads, on whichever side these are.
        options: passed to the model.

    Returns:
        The model's output, whose logits are those of the text, (b, t, vocabulary), and the cache of n_max + t slots.
    """
    cache = stack.cache(selection)
    output = model(
        input_ids=input_ids,
        attention_mask=stack.full_mask(selection, mask),
        position_ids=stack.positions(selection, mask),
        use_cache=True,
        **as_argument(model, cache),
        **options,
    )
    return output, cache


def generate_prompted(
    model: PreTrainedModel,
    stack: PromptStack,
    selection: Int[Tensor, " b"],
    input_ids: Int[Tensor, "b t"],
    mask: Int[Tensor, "b t"],
    *,
    context: DynamicCache | None = None,
    **options: Any,
) -> Int[Tensor, "rows t_new"]:
    """Continue each row behind its prompt, with the model's own `generate`.

    Args:
        selection: the prompt of each row.
        mask: 1 on tokens, 0 on pads; pads on the left, see `align_left`.
        context: what `run_prompted` left for these very arguments: the text is then not computed again. To processors
            of logits and to streamers the slots of the prompt then look like repetitions of the row's last token.
        options: of `generate`: greedy decoding, sampling, beams, several sequences, streamer.

    Returns:
        The ids of text and continuation. Rows are repeated where several sequences are asked for.

    Raises:
        DataError: prompt, text and new tokens do not fit the model's context.
    """
    check_room(model, stack.slots + input_ids.shape[1], options)
    cache, ids, filled = stack.cache(selection), input_ids, 0
    if context is not None:  # generate wants at least one token to compute, and the ids of all slots with the cache
        filled = stack.slots
        cache = new_cache(*([part[:, :, :-1] for part in parts] for parts in _parts(context)))
        ids = torch.cat([input_ids[:, -1:].expand(-1, filled), input_ids], dim=1)
    cache.batch_repeat_interleave(max(_setting(model, options, "num_beams"), _setting(model, options, _SEQUENCES)))
    inputs = {"attention_mask": stack.full_mask(selection, mask), **as_argument(model, cache)}
    return written_ids(model, options, input_ids=ids, **inputs)[:, filled:]


def written_ids(model: PreTrainedModel, options: dict[str, Any], **inputs: Any) -> Int[Tensor, "rows t_new"]:
    """Return the ids that the model's `generate` writes, with its cache whatever `options` say.

    Without the cache a prompt would be lost after the first step, so `use_cache=False` cannot be followed; the result
    is the same.
    """
    if "generation_config" in options:
        config = copy.deepcopy(options["generation_config"])
        config.use_cache = True
        options = options | {"generation_config": config}
    else:
        options = options | {"use_cache": True}
    written = model.generate(**inputs, **options)
    return written if isinstance(written, Tensor) else written.sequences


_SEQUENCES = "num_return_sequences"


def _parts(cache: DynamicCache) -> tuple[list[Tensor], list[Tensor]]:
    return [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]


def _setting(model: PreTrainedModel, options: dict[str, Any], name: str) -> int:
    """Return a setting of `generate`, from where it looks itself: arguments, then configurations."""
    configs = [options.get("generation_config"), model.generation_config]
    found = [options.get(name), *(getattr(config, name, None) for config in configs)]
    return int(next((value for value in found if value is not None), 1))


def check_room(model: PreTrainedModel, used: int, options: dict[str, Any]) -> None:
    """Raise `DataError` where `used` tokens and the new ones that `options` ask for do not fit the model's context."""
    room = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    new = _setting(model, options, "max_new_tokens")
    if room is not None and used + new > room:
        raise DataError(
            f"prompt and text of {used} tokens, and {new} new ones",
            wanted=f"at most {room} together: the model's context",
            action="shorten the text, or ask for fewer new tokens",
        )


def align_left(
    input_ids: Int[Tensor, "b t"], mask: Int[Tensor, "b t"]
) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b t"]]:
    """Return the same rows with all pads on the left, where a decoder needs them."""
    order = mask.bool().int().argsort(dim=1, stable=True)
    return input_ids.gather(1, order), mask.gather(1, order)
