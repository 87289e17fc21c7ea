"""A quantised base as plain layers: what exports are made from, and how far they are from the quantised base.

Quantising W + ΔW once more would round the update away. So exports start from the weights that the quantised layers
stand for, and the gap to the adapter on its quantised base is measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from budwood.export.checks import MEAN_KL_FLOOR, Check, max_difference, mean_kl
from budwood.models import Base, Source
from budwood.models.quantisation import stored_method
from budwood.models.quantised import plain_linear, remove_quantisation
from budwood.storage import read_json
from budwood.tuning.linear import effective_weight

GAP = "mean KL per token from the adapter on the quantised base"
LOGIT_GAP = "largest difference of a logit from the adapter on the quantised base"
# How much of the adapter's effect (mean KL from the quantised base, per token) an export may lose against it. Measured
# with GIFT on the tiny Llama of the tests: less than 1e-10 of it in fp32 and 0.4 % to 0.8 % in bf16, which is the
# rounding of the activations; with int8, whose layers round their inputs to 8 bits, 1.8 % and 2.6 %.
SHARE = 0.05


class OnQuantised(NamedTuple):
    """Logits on the quantised base, in the precision of the training: with the adapter and without."""

    adapted: Float[Tensor, "b t v"]
    base: Float[Tensor, "b t v"]


def dense_twin(base: Base, dtype: torch.dtype | None = None) -> Base:
    """Turn each quantised layer of a base into a plain one with the weight it stands for, in place.

    Args:
        base: a base without adapters; one that is not quantised is only cast.
        dtype: of all weights; then the model is moved to the CPU as well. None keeps precision and device.
    """
    model = base.model
    wanted = dtype or model.dtype
    for name, module in list(model.named_modules()):
        if (weight := effective_weight(module)) is not None:
            model.set_submodule(name, plain_linear(module, weight, wanted))
    remove_quantisation(model)
    return replace(base, model=model if dtype is None else model.to("cpu", dtype))


def quantisation_name(source: Source) -> str:
    """Return how a quantised base is quantised, in a word: a suffix such as "+nf4", or what its files say."""
    suffix = source.reference.quantisation
    return f"+{suffix}" if suffix else str(stored_method(read_json(source.folder / "config.json")))


def gap_checks(merged: Float[Tensor, "b t v"], trained: OnQuantised, *, accept: bool) -> tuple[Check, ...]:
    """Compare what an export on plain layers answers with what the adapter answers on its quantised base.

    Args:
        merged: logits of the export.
        trained: logits on the quantised base.
        accept: whether a gap above the limit is taken all the same.
    """
    kl, effect = mean_kl(trained.adapted, merged), mean_kl(trained.adapted, trained.base)
    limit = max(MEAN_KL_FLOOR, SHARE * effect)
    note = f"{effect:.3g} from the quantised base itself"
    if kl > limit:
        note += "; the quantised layers round their inputs too, and plain ones do not"
        note += "; above the limit and taken all the same" if accept else "; --force takes it all the same"
    return (
        Check(LOGIT_GAP, True, max_difference(trained.adapted, merged)),
        Check(GAP, accept or kl <= limit, kl, limit, note),
    )


def gap_notes(source: Source, checks: tuple[Check, ...]) -> tuple[str, ...]:
    """Return what a reader of the card must know: that the base was quantised, why it is not now, and the gap."""
    sentences = [
        f"The adapter was trained on a quantised base ({quantisation_name(source)}). The folder holds that base"
        " dequantised: quantising the sum anew would round the update away."
    ]
    for check in checks:
        if check.name in (GAP, LOGIT_GAP):
            sentences.append(f"Measured: {str(check).removeprefix('ok').strip()}.")
    return tuple(sentences)
