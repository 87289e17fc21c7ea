"""Which of IDP's ways to choose work on which base, and why the others do not.

A prompt must be exact in front of a row (`tuning.prompt_support`); for likelihood and router that is all. Attention is
read in one pass where the prompts can be cached and attention is a plain softmax that goes through transformers'
interface. Elsewhere each prompt is read with the text alone, if the base shows its attention at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from transformers import PreTrainedModel

from budwood.errors import ConfigError, NotSupportedError
from budwood.tuning.prompt_support import cache_refusal

SOFTMAX_CHANGES = ("softcap", "s_aux", "position_bias")  # arguments of an attention that is no plain softmax of q·k
CAPS = ("attn_logit_softcapping", "attn_logit_softcap")  # their names in configurations


def reads_together(model: PreTrainedModel) -> bool:
    """Whether one pass can hold all prompts, each under one softmax with the others."""
    config = model.config.get_text_config(decoder=True)
    capped = any(getattr(config, name, None) is not None for name in CAPS)
    return cache_refusal(model) is None and model._can_set_attn_implementation() and not capped


def require_softmax(options: dict[str, Any]) -> None:
    """Raise `NotSupportedError` if the arguments of an attention call make it other than a plain softmax."""
    found = [name for name in SOFTMAX_CHANGES if options.get(name) is not None]
    if found:
        raise unreadable(f"this model's attention has {', '.join(found)}, which its scores would leave out")


def unreadable(reason: str) -> NotSupportedError:
    """Return the error that says why attention cannot be read, and what to choose by instead."""
    return NotSupportedError(
        f"scores from attention: {reason}",
        wanted="a base that shows the attention of each of its layers",
        action='choose by "likelihood" or by "router": they need no attention',
    )


def chosen_layers(layers: Iterable[int] | None, model: PreTrainedModel) -> tuple[int, ...]:
    """Return the layers to score, in order; None is all of them. Negative numbers count from the end.

    Raises:
        ConfigError: a layer that the model does not have.
    """
    count = int(model.config.get_text_config().num_hidden_layers)
    wanted = range(count) if layers is None else list(layers)
    unknown = [layer for layer in wanted if not -count <= layer < count]
    if unknown or not wanted:
        raise ConfigError(
            f"layer {unknown[0]} is to be scored" if unknown else "no layer is to be scored",
            wanted=f"layers from 0 to {count - 1} of this model",
        )
    return tuple(sorted({layer % count for layer in wanted}))


def require_skip(lengths: Sequence[int], skip_first: int) -> None:
    """Raise `ConfigError` where skipping the first vectors leaves nothing of a prompt."""
    if min(lengths) <= skip_first:
        raise ConfigError(
            f"the first {skip_first} vectors of each prompt are to be skipped", wanted=f"fewer than {min(lengths)}"
        )
