"""How likely a model finds the supervised tokens of encoded rows: exact, in nats, without generating.

The same pass tells whether a row is *forced-exact*: whether the most likely token at every supervised position, the
end token included, is the right one when all tokens before it are right. Greedy decoding then writes the reference.

Rows of similar length are computed together, padded on the right. In fp32 the batch size moves a mean over rows by
less than 1e-5 nats a token (and a single token of a model of 135 M parameters by up to 2e-5); in bf16 and fp16 by
their rounding, so compare models at one batch size there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from budwood.data.collate import Collator
from budwood.data.render import Encoded
from budwood.evals._running import BatchSize, Progress, device_of, evaluating, make_batches
from budwood.training.loss import IGNORED, Batch, Targets, find_targets, target_logits
from budwood.tuning.soft_prompts import Choice, Prompted

BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}  # padded tokens a batch; more gained nothing on a CPU
HEAD_ROWS = 256  # rows of logits turned into fp32 probabilities at a time: bounds memory, not the result


@dataclass(frozen=True, eq=False)
class Likelihood:
    """The likelihood of one encoded row.

    Attributes:
        token_nll: negative log-likelihood of each supervised token, in nats, in order.
        token_hits: whether the most likely token was the right one, for each of them.
        token_leads: how far its logit is above the highest other one; below 0 where it is not the most likely.
    """

    token_nll: Float[np.ndarray, " supervised"]
    token_hits: Bool[np.ndarray, " supervised"]
    token_leads: Float[np.ndarray, " supervised"]

    @property
    def exact(self) -> bool:
        """Whether the most likely token was right at every supervised position."""
        return bool(self.token_hits.all())

    @property
    def tokens(self) -> int:
        """The count of supervised tokens."""
        return len(self.token_nll)

    @property
    def nll(self) -> float:
        """The sum over supervised tokens, in nats."""
        return float(self.token_nll.sum(dtype=np.float64))


def likelihoods(
    model: nn.Module,
    encoded: Sequence[Encoded],
    *,
    batch_size: BatchSize = "auto",
    selections: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> list[Likelihood]:
    """Return the likelihood of each encoded row, in the order given.

    A label at position 0 has nothing before it to be predicted from and does not count. Token weights are not used:
    they belong to training.

    Args:
        model: a causal language model, bare, a `PeftModel` or `Prompted`; its mode is restored. A `Prompted` chooses
            each row's prompt from the tokens before the first supervised one, so never from what is scored.
        encoded: sequences of `Renderer.encode`.
        batch_size: rows a batch, or "auto".
        selections: for a `Prompted`, the number of each row's prompt, where it is chosen already.
        progress: called with ("likelihood", rows done, rows) after each batch.

    Raises:
        NotSupportedError: the model has no language-model head.
        DataError: a `Prompted` has to choose for a row whose first token is supervised already.
        OutOfMemoryError: a batch did not fit.
    """
    found: dict[int, Likelihood] = {}
    budget = BATCH_TOKENS.get(device_of(model).type, BATCH_TOKENS["cuda"])
    with evaluating(model):
        for batch in make_batches([len(row.input_ids) for row in encoded], batch_size, budget):
            chosen = None if selections is None else [selections[i] for i in batch]
            found.update(zip(batch, _score_batch(model, [encoded[i] for i in batch], chosen)))
            if progress is not None:
                progress("likelihood", len(found), len(encoded))
    return [found[i] for i in range(len(encoded))]


def select_prompts(
    model: Prompted, encoded: Sequence[Encoded], *, batch_size: BatchSize = "auto"
) -> Int[np.ndarray, " n"]:
    """Return the number of the prompt that `model` chooses for each row, from what is given in it.

    The arguments and errors are those of `likelihoods`.
    """
    chosen = np.zeros(len(encoded), dtype=np.int64)
    budget = BATCH_TOKENS.get(device_of(model).type, BATCH_TOKENS["cuda"])
    with evaluating(model):
        for rows in make_batches([len(row.input_ids) for row in encoded], batch_size, budget):
            batch = {
                k: v.to(device_of(model)) for k, v in Collator(pad_token_id=0)([encoded[i] for i in rows]).items()
            }
            chosen[rows] = model.select(batch["input_ids"], given(batch)).selection.cpu().numpy()
    return chosen


def _score_batch(model: nn.Module, rows: Sequence[Encoded], chosen: Sequence[int] | None) -> list[Likelihood]:
    # The padding id is masked, so any will do.
    batch = {name: tensor.to(device_of(model)) for name, tensor in Collator(pad_token_id=0)(rows).items()}
    batch["loss_weights"] = torch.ones_like(batch["loss_weights"])  # token weights are the training's affair
    logits, targets = _prompted(model, batch, chosen) if isinstance(model, Prompted) else target_logits(model, batch)
    counts = [row.supervised for row in rows]
    of_rows = (part.cpu().split(counts) for part in _token_scores(logits, targets.ids))
    return [Likelihood(*(part.numpy() for part in parts)) for parts in zip(*of_rows, strict=True)]


def _prompted(model: Prompted, batch: Batch, chosen: Sequence[int] | None) -> tuple[Tensor, Targets]:
    """Return what `target_logits` returns, each row behind a prompt that is chosen from what is given in it."""
    ids, mask, targets = batch["input_ids"], batch["attention_mask"], find_targets(batch)
    selection = model.select(ids, given(batch)) if chosen is None else Choice(torch.tensor(chosen, device=ids.device))
    return targets.pick(model(ids, mask, selection=selection).logits), targets


def given(batch: Batch) -> Int[Tensor, "b t"]:
    """Return the mask of the tokens before the first supervised one: all that a choice may read."""
    return batch["attention_mask"] * (batch["labels"] == IGNORED).cumprod(dim=1)


def _token_scores(
    logits: Float[Tensor, "n vocabulary"], targets: Int[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"], Float[Tensor, " n"]]:
    """Return the NLL of each target in nats, whether it is the most likely token, and its lead over the others."""
    targets = targets.to(logits.device)
    nll, right, leads = [], [], []
    for part, target in zip(logits.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True):
        nll.append(nn.functional.cross_entropy(part.float(), target, reduction="none"))
        right.append(part.argmax(dim=-1) == target)
        two = part.topk(2, dim=-1).values.float()
        leads.append(part.gather(-1, target[:, None])[:, 0].float() - torch.where(right[-1], two[:, 1], two[:, 0]))
    return torch.cat(nll), torch.cat(right), torch.cat(leads)
