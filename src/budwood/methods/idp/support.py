"""Which of IDP's ways to choose work on which base, and why the others do not.

Everything needs keys and values that can be put in front of any text (`tuning.prompt_support`). Scores from attention
need more: a model that computes attention through transformers' interface, as a plain softmax.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedModel

from budwood.errors import ConfigError, NotSupportedError

SOFTMAX_CHANGES = ("softcap", "s_aux", "position_bias")  # arguments of an attention that is no plain softmax of q·k


def require_attention(model: PreTrainedModel) -> None:
    """Raise `NotSupportedError` where attention cannot be read through transformers' interface."""
    if not model._can_set_attn_implementation():
        raise _unreadable(f"{type(model).__name__} computes attention in a way of its own")


def require_softmax(options: dict[str, Any]) -> None:
    """Raise `NotSupportedError` if the arguments of an attention call make it other than a plain softmax."""
    found = [name for name in SOFTMAX_CHANGES if options.get(name) is not None]
    if found:
        raise _unreadable(f"this model's attention has {', '.join(found)}, which its scores would leave out")


def _unreadable(reason: str) -> NotSupportedError:
    return NotSupportedError(
        f"scores from attention: {reason}",
        wanted="attention that is a plain softmax, computed through transformers' interface",
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
