"""On which base models a soft prompt is exact, and in which form: decided from the configuration, then tried once.

Cached keys and values (`prompt_cache`) are exact for decoders whose layers all keep those of all tokens, and whose
positions are given as numbers: rotary (with fixed frequencies) or learned. Tested: Llama, Qwen2, GPT-NeoX, OPT, GPT-2.
Vectors in front of each row (`prompt_rows`) are exact for more: sliding windows, ALiBi, recurrent and hybrid layers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from budwood.errors import NotSupportedError
from budwood.tuning.prompt_cache import PromptKeyValues, PromptStack, as_argument, run_prompted, takes

UNFIXED_ROPE = ("dynamic", "longrope")
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # root mean square, of the spread of the logits
TOLERANCE_16_BITS = 0.1


def prompt_refusal(model: PreTrainedModel) -> str | None:
    """Return why a soft prompt in front of a row is exact in no form; None where it is in one at least."""
    if model.config.is_encoder_decoder:
        return "an encoder reads the prompt together with the text"
    if not (model.can_generate() and takes(model, "inputs_embeds")):
        return "it is no causal language model that takes vectors in place of tokens"
    if set(_rope_types(model.config.get_text_config(decoder=True))) & set(UNFIXED_ROPE):
        return "the frequencies of its rotary positions change with the length (dynamic NTK or LongRoPE)"
    return None


def cache_refusal(model: PreTrainedModel) -> str | None:
    """Return why the keys and values of a prompt cannot be put in front of any text; None where they can."""
    if reason := prompt_refusal(model):
        return reason
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "alibi", False) or not takes(model, "position_ids"):
        return "it takes no positions (ALiBi or recurrent layers), so a row cannot leave slots empty"
    layers = DynamicCache(config=config).layers
    if any(type(layer) is not DynamicLayer for layer in layers):
        return "some layers keep a window or a state in place of all keys and values"
    return None


def _rope_types(config: object) -> list[str]:
    """Return the kinds of rotary scaling; the parameters may be given for each kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [one for one in parameters.values() if isinstance(one, dict)]
    return [one["rope_type"] for one in (nested or [parameters]) if "rope_type" in one]


def require_prompt(model: PreTrainedModel) -> None:
    """Raise `NotSupportedError` where `prompt_refusal` has a reason."""
    if reason := prompt_refusal(model):
        raise _refused(
            model, reason, wanted="a decoder that takes vectors, with positions that do not depend on the length"
        )


def require_cache(model: PreTrainedModel) -> None:
    """Raise `NotSupportedError` where `cache_refusal` has a reason."""
    if reason := cache_refusal(model):
        raise _refused(
            model,
            reason,
            wanted="a decoder with full attention and rotary or learned positions, such as Llama, Qwen2 or GPT-2",
        )


def _refused(model: PreTrainedModel, reason: str, *, wanted: str) -> NotSupportedError:
    return NotSupportedError(
        f"a soft prompt in front of {type(model).__name__}: {reason}",
        wanted=wanted,
        action="evaluate its likelihood without generation, or use a tuner that changes weights",
    )


@torch.no_grad()
def prove(model: PreTrainedModel, prompt: PromptKeyValues) -> None:
    """Try the cached form of `prompt` on three tokens against the plain one, where only the mask differs.

    An architecture that looks right but counts slots instead of positions computes something else as soon as slots
    are empty, without an error. Here the plain form has the prompt alone in front of the text, and the cached form
    has as many empty slots before it.

    Raises:
        NotSupportedError: the two differ by more than rounding.
    """
    ids = torch.arange(3, device=model.device)[None] % model.get_input_embeddings().num_embeddings
    plain_cache = PromptStack([prompt]).cache(torch.zeros(1, dtype=torch.long, device=model.device))
    plain = model(input_ids=ids, use_cache=True, **as_argument(model, plain_cache)).logits
    stack = PromptStack([prompt, _doubled(prompt)])
    shifted, _ = run_prompted(model, stack, torch.zeros_like(ids[:, 0]), ids, torch.ones_like(ids))
    # The root mean square: in 16 bits one logit of 49,152 is off by 0.17 of the spread where all is well, but the mean
    # square is below 0.05 of it, and above 0.11 where positions or mask are wrong (SmolLM2-135M).
    require_equal(model, "empty slots change", shifted.logits, plain)


def require_equal(model: PreTrainedModel, change: str, found: Tensor, wanted: Tensor) -> None:
    """Raise `NotSupportedError` if two forms of the same logits differ by more than rounding.

    Args:
        change: what tells the forms apart, and a verb.
    """
    gap = (found.double() - wanted.double()).square().mean().sqrt() / wanted.double().std()
    if not gap <= TOLERANCE.get(model.dtype, TOLERANCE_16_BITS):
        raise NotSupportedError(
            f"a soft prompt in front of {type(model).__name__}: {change} its logits by {gap:.1e} of their spread",
            wanted="a model whose positions and mask can be given freely",
            action="use a tuner that changes weights",
        )


def _doubled(prompt: PromptKeyValues) -> PromptKeyValues:
    """Return a prompt of twice the length, so that the other one leaves half of the slots empty."""
    keys, values = (tuple(torch.cat([one, one], dim=1) for one in part) for part in (prompt.keys, prompt.values))
    return PromptKeyValues(keys, values)
