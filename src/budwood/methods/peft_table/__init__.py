"""PEFT's own tuners by name: a table, one row each. Nothing here is a method of ours.

| name   | what changes                                              | learned                                     |
| ------ | --------------------------------------------------------- | ------------------------------------------- |
| lora   | ΔW = s B A, s = alpha / r (arXiv 2106.09685)              | r (d_in + d_out) numbers a layer            |
| dora   | Ŵ = m ⊙ (W + s B A) / ‖W + s B A‖ (arXiv 2402.09353)      | r (d_in + d_out) + d_out numbers a layer    |
| vera   | ΔW = diag(b) B diag(d) A, A, B random (arXiv 2310.11454)  | d_out + r numbers a layer                   |
| ia3    | ŷ = l ⊙ W x, or W (l ⊙ x) (arXiv 2205.05638)              | d_out or d_in numbers a layer               |
| prompt | vectors in front of the embedded text (arXiv 2104.08691)  | tokens · d numbers                          |
| prefix | keys and values in front of each layer's (arXiv 2101.00190) | tokens · 2 d_kv numbers a layer           |

Full fine-tuning is left out, with the reason in `LEFT_OUT`. PEFT's nearest things to it, `modules_to_save` and LN
tuning, train a second copy of each module they name: the weights are held twice, in bf16 where the base is (small
steps are rounded away), and the whole copy is written as the "adapter".
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from budwood.methods.peft_table.citations import BIBTEX
from budwood.methods.peft_table.settings import (
    DoraSettings,
    Ia3Settings,
    LoraSettings,
    PrefixSettings,
    PromptSettings,
    VeraSettings,
)
from budwood.tuning.protocol import Method, Promise, Tuner, TunerSettings

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel

INPUT_VECTORS = "it learns vectors that the model reads, and no change of a weight"


def _config(name: str, settings: TunerSettings, model: PreTrainedModel, **options: Any) -> PeftConfig:
    """Call the function of that name in `configs`, which loads PEFT."""
    from budwood.methods.peft_table import configs

    return getattr(configs, name)(settings, model, **options)


def _row(refuses: dict[Promise, str], **values: Any) -> Tuner:
    return Tuner(keeps=frozenset(Promise) - frozenset(refuses), refuses=refuses, **values)


TUNERS = (
    _row(
        name="lora",
        learns="A (r, d_in) and B (d_out, r) for each layer: r·(d_in + d_out) numbers a layer",
        paper="https://arxiv.org/abs/2106.09685",
        settings=LoraSettings,
        learning_rate=1e-3,
        make_config=partial(_config, "lora"),
        refuses={Promise.MERGE: "PEFT adds and subtracts BA in place, so unmerging leaves rounding behind"},
    ),
    _row(
        name="dora",
        learns="A, B and a magnitude m (d_out) for each layer: r·(d_in + d_out) + d_out numbers a layer",
        paper="https://arxiv.org/abs/2402.09353",
        settings=DoraSettings,
        learning_rate=1e-3,
        make_config=partial(_config, "lora", use_dora=True),
        refuses={
            Promise.IDENTITY: "in 16 bits PEFT rounds ‖W‖ differently at attach and in use; in fp32 nothing changes",
            Promise.MERGE: "PEFT divides by m / ‖W + BA‖ to unmerge, which leaves rounding behind",
            Promise.LORA: "the magnitude rescales the rows of W, which is no low-rank update",
        },
    ),
    _row(
        name="vera",
        learns="b (d_out) and d (r) for each layer, beside frozen random A and B: d_out + r numbers a layer",
        paper="https://arxiv.org/abs/2310.11454",
        settings=VeraSettings,
        learning_rate=4e-3,
        make_config=partial(_config, "vera"),
        refuses={
            Promise.MERGE: "PEFT adds and subtracts ΔW in place, so unmerging leaves rounding behind",
            Promise.LORA: "its exact LoRA has the rank of the frozen A, 256 by default, more than servers take",
        },
    ),
    _row(
        name="ia3",
        learns="one factor for each output of keys and values and each input of the feed-forward's last layer",
        paper="https://arxiv.org/abs/2205.05638",
        settings=Ia3Settings,
        learning_rate=3e-3,
        make_config=partial(_config, "ia3"),
        refuses={
            Promise.MERGE: "PEFT divides by the learned factors to unmerge, which leaves rounding behind",
            Promise.LORA: "it rescales whole rows or columns of W, which is no low-rank update",
        },
    ),
    _row(
        name="prompt",
        learns="the vectors of a soft prompt in front of the text: tokens · d numbers",
        paper="https://arxiv.org/abs/2104.08691",
        settings=PromptSettings,
        learning_rate=1e-2,
        make_config=partial(_config, "prompt"),
        refuses={
            Promise.IDENTITY: "the model reads the prompt from the first step on",
            Promise.MERGE: INPUT_VECTORS,
            Promise.LORA: INPUT_VECTORS,
        },
    ),
    _row(
        name="prefix",
        learns="keys and values in front of those of each layer: tokens · 2 d_kv numbers a layer",
        paper="https://arxiv.org/abs/2101.00190",
        settings=PrefixSettings,
        learning_rate=1e-2,
        make_config=partial(_config, "prefix"),
        refuses={
            Promise.IDENTITY: "each layer attends to the prefix from the first step on",
            Promise.MERGE: INPUT_VECTORS,
            Promise.LORA: INPUT_VECTORS,
        },
    ),
)

LEFT_OUT = {
    "full": "its result is a whole model, not an adapter to take off, add up or export. For SmolLM2-135M's 134,515,008"
    " numbers it takes 538 MB in fp32 (gift: 258,048, 1 MB), and gradients and AdamW's state 1.6 GB (3 MB)",
}

TITLES = {
    "lora": "a low-rank update of each layer (the baseline)",
    "dora": "a low-rank update of each layer's direction, and its magnitude",
    "vera": "trained scales between random matrices that layers share",
    "ia3": "trained scales of keys, values and feed-forward activations",
    "prompt": "a soft prompt in front of the text",
    "prefix": "trained keys and values in front of those of each layer",
}

METHODS = tuple(
    Method(
        name=tuner.name,
        title=TITLES[tuner.name],
        evidence="examples",
        tuner=tuner.name,
        paper=tuner.paper,
        bibtex=BIBTEX[tuner.name],
    )
    for tuner in TUNERS
)
