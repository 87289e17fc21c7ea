"""What the frozen base thinks of each token of a text: how surprising it is, and its hidden states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from budwood.data.collate import Collator
from budwood.errors import ConfigError
from budwood.methods.taalm.passages import Passage
from budwood.training.blocks import mode
from budwood.training.loss import language_model

BATCH_TOKENS = 1024  # padded tokens a forward pass: bounds the logits in memory


@dataclass(frozen=True)
class Reading:
    """One entry a token; what depends on the text before it is 0 at the first token.

    Attributes:
        nll: ℓ_t, −log p(x_t | x_<t), in nats.
        entropy: of p(· | x_<t), in nats.
        rank: how many tokens were more likely than x_t.
        hidden: the states that enter the chosen layers at t, which have seen x_t, side by side.
    """

    nll: Float[Tensor, " T"]
    entropy: Float[Tensor, " T"]
    rank: Float[Tensor, " T"]
    hidden: Float[Tensor, "T width"]


@torch.no_grad()
def read(model: nn.Module, passages: Sequence[Passage], layers: Sequence[int]) -> list[Reading]:
    """Return what `model` thinks of each passage, in fp32 on the CPU, in the order given.

    Args:
        model: the base; an adapter on it is switched off meanwhile.
        layers: whose inputs are wanted; the count of layers itself means what the head reads.

    Raises:
        ConfigError: a layer that the model does not have.
    """
    core = language_model(model)
    depth = int(core.config.get_text_config().num_hidden_layers)
    if unknown := [layer for layer in layers if not 0 <= layer <= depth]:
        raise ConfigError(f"the state that enters layer {unknown[0]}", wanted=f"0 to {depth} in this model")
    found: dict[int, Reading] = {}
    plain = model.disable_adapter() if isinstance(model, PeftModel) else contextlib.nullcontext()
    with mode(model, training=False), plain:
        for batch in _batches(passages):
            found |= zip(batch, _read_batch(core, [passages[i] for i in batch], layers), strict=True)
    return [found[i] for i in range(len(passages))]


def _batches(passages: Sequence[Passage]) -> Iterator[list[int]]:
    """Passages of similar length together, the longest first, so that what does not fit shows at once."""
    batch: list[int] = []
    for index in sorted(range(len(passages)), key=lambda i: -len(passages[i].spans)):
        if batch and (len(batch) + 1) * len(passages[batch[0]].spans) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _read_batch(model: PreTrainedModel, passages: Sequence[Passage], layers: Sequence[int]) -> list[Reading]:
    batch = Collator(pad_token_id=0)([passage.encoded for passage in passages])  # pads are masked, so any id will do
    inputs = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
    output = model(**inputs, use_cache=False, output_hidden_states=True)
    found = []
    for row, passage in enumerate(passages):
        length = len(passage.spans)
        states = [output.hidden_states[layer][row, :length] for layer in layers]
        hidden = torch.cat(states, dim=-1) if states else torch.zeros(length, 0)
        scores = output.logits[row, : length - 1].float().log_softmax(dim=-1)
        own = scores.gather(1, inputs["input_ids"][row, 1:length, None])
        found.append(
            Reading(
                nll=_after_first(-own[:, 0]),
                entropy=_after_first(-(scores.exp() * scores).sum(dim=-1)),
                rank=_after_first((scores > own).sum(dim=-1)),
                hidden=hidden.float().cpu(),
            )
        )
    return found


def _after_first(values: Tensor) -> Float[Tensor, " T"]:
    return torch.cat([torch.zeros(1), values.float().cpu()])
