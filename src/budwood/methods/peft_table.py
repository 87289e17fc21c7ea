"""PEFT's own tuners by name: a table, one row each. Nothing here is a method of ours.

| name | ΔW                                           | learned per layer        |
| ---- | -------------------------------------------- | ------------------------ |
| lora | s B A, s = alpha / r (arXiv 2106.09685)       | r (d_in + d_out) numbers |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from budwood.tuning.protocol import Method, Promise, Tuner, TunerSettings

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel


class LoraSettings(TunerSettings):
    """Settings of LoRA."""

    rank: int = Field(16, ge=1, description="rank r of BA")
    alpha: float | None = Field(None, description="none: 2 x rank; the update is scaled by alpha / rank")
    targets: list[str] | Literal["all"] = Field("all", description="linear layers to adapt, by role or by name")
    layers: list[int] | None = Field(None, description="indices of the layers to adapt; all by default")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the vector that A reads")


def _lora(settings: LoraSettings, model: PreTrainedModel) -> LoraConfig:
    from peft import LoraConfig

    from budwood.models import resolve_targets
    from budwood.tuning.targets import stores_transposed, task_type

    alpha = 2 * settings.rank if settings.alpha is None else settings.alpha
    targets = resolve_targets(model, ["all"] if settings.targets == "all" else settings.targets)
    return LoraConfig(
        r=settings.rank,
        lora_alpha=int(alpha) if float(alpha).is_integer() else alpha,
        lora_dropout=settings.dropout,
        target_modules=targets,
        layers_to_transform=settings.layers,
        fan_in_fan_out=stores_transposed(model, targets),
        task_type=task_type(model),
    )


TUNERS = (
    Tuner(
        name="lora",
        learns="A (r, d_in) and B (d_out, r) for each layer: r·(d_in + d_out) numbers a layer",
        paper="https://arxiv.org/abs/2106.09685",
        settings=LoraSettings,
        learning_rate=1e-3,
        make_config=_lora,
        keeps=frozenset(Promise) - {Promise.MERGE},
        refuses={Promise.MERGE: "PEFT adds and subtracts BA in place, so unmerging leaves rounding behind"},
    ),
)

METHODS = (
    Method(
        name="lora",
        title="a low-rank update of each layer (the baseline)",
        evidence="examples",
        tuner="lora",
        paper="https://arxiv.org/abs/2106.09685",
        bibtex="""@article{hu2021lora,
  title = {{LoRA}: Low-Rank Adaptation of Large Language Models},
  author = {Hu, Edward J. and Shen, Yelong and Wallis, Phillip and Allen-Zhu, Zeyuan and Li, Yuanzhi and Wang, Shean
            and Wang, Lu and Chen, Weizhu},
  journal = {arXiv preprint arXiv:2106.09685},
  year = {2021}
}""",
    ),
)
