"""The weighted token loss, exact and in fp32, with logits computed only where a target has a weight.

The loss of an optimiser step is a quotient of two sums over the step, so that it does not depend on how the step is
split into batches. With the weights w_t and losses ℓ_t of a sequence, and the outer sums over all sequences:

                 numerator                     denominator
    token        Σ Σ_t w_t ℓ_t                 Σ Σ_t w_t
    sequence     Σ (Σ_t w_t ℓ_t / Σ_t w_t)     the number of sequences    (TAALM, Seo et al. 2024)
    count        Σ Σ_t w_t ℓ_t                 the number of targets with w_t > 0
    none         Σ Σ_t w_t ℓ_t                 the number of sequences    (CaMeLS, Hu et al. 2023, arXiv:2305.15076)

A sequence whose weights are all 0 adds exactly 0 above and counts below; one without any target counts nowhere.

The head is the widest matrix of a small model and most positions of a row are its prompt, so a hook in front of the
head keeps just the hidden states that predict a weighted target. It reads each row's own positions (`logits_to_keep`
keeps the union over the batch, and not every architecture has it), and hands the head a contiguous copy: on a strided
slice a CPU is up to 25 times slower in bf16.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from budwood.errors import NotSupportedError
from budwood.training.forwards import replaced
from budwood.training.head import head_nll, plain_head
from budwood.training.settings import Normalisation

IGNORED = -100  # the label of a position without a target
Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class Targets:
    """The n targets of a batch that have a weight.

    Attributes:
        rows: the row of each target, (n,).
        positions: the position whose hidden state predicts it, (n,).
        ids: the token to predict, (n,).
        weights: its weight, (n,), fp32.
        length: the padded length of a row, T.
        has_targets: whether a row has a target, of whatever weight, (batch,).
    """

    rows: Tensor
    positions: Tensor
    ids: Tensor
    weights: Tensor
    length: int
    has_targets: Tensor

    def pick(self, values: Tensor) -> Tensor:
        """Return the (n, d) entries at the targets from (batch, V + T, d) values, as a contiguous copy.

        Soft prompts put V positions in front of a row, so positions count from its end.
        """
        index = self.rows * values.shape[1] + (values.shape[1] - self.length) + self.positions
        return values.flatten(0, 1).index_select(0, index)


def find_targets(batch: Batch, *, shifted: bool = True) -> Targets:
    """Return the targets of `batch` whose weight is above 0.

    Args:
        batch: `labels` (batch, T), the token at each trained position and -100 elsewhere; `loss_weights` (batch, T).
        shifted: whether the hidden state at t predicts the token at t + 1, as in causal models, so that a label at
            position 0 has nothing to predict it; otherwise it predicts the token at t, as in a decoder after an
            encoder.
    """
    labels, weights = batch["labels"], batch["loss_weights"]
    length, first = labels.shape[1], int(shifted)
    labelled = labels[:, first:] != IGNORED
    rows, positions = (labelled & (weights[:, first:] > 0)).nonzero(as_tuple=True)
    at = (rows, positions + first)
    return Targets(rows, positions, labels[at], weights[at].float(), length, labelled.any(dim=1))


def denominator(targets: Targets, normalise: Normalisation, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return this batch's part of the denominator, a scalar."""
    if normalise == "token":
        return targets.weights.sum(dtype=dtype)
    if normalise == "count":
        return torch.tensor(len(targets.ids), dtype=dtype, device=targets.ids.device)
    return targets.has_targets.sum(dtype=dtype)


def _factors(targets: Targets, normalise: Normalisation) -> Tensor:
    """Return the factor of each target's loss in the numerator, (n,)."""
    if normalise != "sequence":
        return targets.weights
    sums = targets.weights.new_zeros(len(targets.has_targets)).index_add(0, targets.rows, targets.weights)
    return targets.weights / sums[targets.rows]


def weighted_nll(model: nn.Module, batch: Batch, normalise: Normalisation = "token") -> tuple[Tensor, Tensor]:
    """Return this batch's parts of numerator and denominator, two fp32 scalars; the losses are in nats.

    A target of weight 0 adds exactly nothing to either.

    Args:
        model: a causal or an encoder-decoder language model of transformers, bare, a `PeftModel`, or wrapped in
            `DistributedDataParallel`.
        batch: `labels`, `loss_weights` as in `find_targets`, and the inputs of the model.
        normalise: what the two are; "token" gives Σ w·nll and Σ w.

    Raises:
        NotSupportedError: the model is no such language model; or, in the backward pass, a second derivative is asked
            for.
    """
    nll, targets = token_nll(model, batch)
    return (nll * _factors(targets, normalise)).sum(), denominator(targets, normalise)


def token_nll(model: nn.Module, batch: Batch) -> tuple[Tensor, Targets]:
    """Return the loss of each of the n targets of `batch` that have a weight, (n,), fp32, in nats, and those targets.

    The logits are made a chunk at a time where the head allows it (`head.plain_head`), and then there is no second
    derivative: what needs one computes its loss from `target_logits`. Arguments and errors are as in `weighted_nll`.
    """
    found = target_states(model, batch)
    if found is None:
        logits, targets = target_logits(model, batch)
        return nn.functional.cross_entropy(logits.float(), targets.ids, reduction="none"), targets
    hidden, targets, head = found
    return head_nll(hidden, head.weight, head.bias, targets.ids), targets


def target_states(model: nn.Module, batch: Batch) -> tuple[Tensor, Targets, nn.Linear] | None:
    """Return the (n, d) states that the head reads at the n targets of `batch` with a weight, those, and the head.

    None where the logits are not the head's output as it stands (`head.plain_head`), or the head is trained. The
    arguments and errors are those of `weighted_nll`.
    """
    core = language_model(model)
    head = plain_head(core, {name: value[:1] for name, value in _inputs(core, batch).items()})
    if head is None:
        return None
    with replaced(head, lambda hidden: hidden):
        hidden, targets = target_logits(model, batch)
    return hidden, targets, head


def target_logits(model: nn.Module, batch: Batch) -> tuple[Tensor, Targets]:
    """Return the (n, vocabulary) logits at the n targets of `batch` that have a weight, and those targets.

    The arguments and errors are those of `weighted_nll`.
    """
    core = language_model(model)
    targets = find_targets(batch, shifted=not core.config.is_encoder_decoder)
    with _head_at(core, targets):
        output = model(**_inputs(core, batch), use_cache=False)
    if "logits" not in output:
        raise NotSupportedError(f"{type(core).__name__} has no language-model head", wanted="a language model")
    logits = output.logits
    # Where no hook came into effect the model has computed all positions.
    kept = logits.shape[:2] == (1, len(targets.ids))
    return (logits.squeeze(0) if kept else targets.pick(logits)), targets


def _inputs(core: PreTrainedModel, batch: Batch) -> dict[str, Tensor]:
    """Return what the model reads of a batch."""
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "loss_weights")}
    if core.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = core.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
    return inputs


def language_model(model: nn.Module) -> PreTrainedModel:
    """Return the transformers model inside `model`.

    Raises:
        NotSupportedError: there is none, or its loss is not of a kind that is known here.
    """
    core = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    if core is None:
        raise NotSupportedError(f"{type(model).__name__} holds no model of transformers", wanted="a language model")
    if type(core).__name__ in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values():
        raise NotSupportedError(
            f"{type(core).__name__} is a masked language model", wanted="a causal or an encoder-decoder language model"
        )
    return core


@contextlib.contextmanager
def _head_at(core: PreTrainedModel, targets: Targets) -> Iterator[None]:
    """Make the head compute logits at the targets only: (1, n, vocabulary) instead of (batch, T, vocabulary)."""
    head = core.get_output_embeddings()
    if head is None:
        yield
        return

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *others = inputs
        return (targets.pick(hidden).unsqueeze(0), *others)

    hook = head.register_forward_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()
