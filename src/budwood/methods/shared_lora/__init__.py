"""Shared LoRA: one low-rank update for all layers of a kind, the baseline that GIFT has to beat at equal size.

    Ŵ_l = W_l + s B A      the same A, B for every layer l of a kind

It is GIFT without the pretrained weight inside the update. Paper: an ablation of https://arxiv.org/abs/2312.00700.
Learned: A (r, d_in) and B (d_out, r) once per kind of layer, r·(d_in + d_out) numbers a kind. Deviations are listed in
README.md beside this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from budwood.tuning.protocol import Method, Promise, Tuner, TunerSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from budwood.methods.shared_lora.config import SharedLoraConfig


class SharedLoraSettings(TunerSettings):
    """Settings of shared LoRA."""

    rank: int = Field(32, ge=1, description="rank r of BA")
    alpha: float | None = Field(None, description="none: 2 x rank; the update is scaled by alpha / rank")
    targets: list[str] | Literal["all"] = Field("all", description="linear layers to adapt, by role or by name")
    layers: list[int] | None = Field(None, description="indices of the layers to adapt; all by default")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the vector that A reads")


def make_config(settings: SharedLoraSettings, model: PreTrainedModel) -> SharedLoraConfig:
    """Turn settings, with roles in them, into a `SharedLoraConfig` with this model's module names."""
    from budwood.methods.shared_lora.config import SharedLoraConfig
    from budwood.models import resolve_targets
    from budwood.tuning.targets import task_type

    return SharedLoraConfig(
        r=settings.rank,
        lora_alpha=2 * settings.rank if settings.alpha is None else settings.alpha,
        target_modules=resolve_targets(model, ["all"] if settings.targets == "all" else settings.targets),
        layers_to_transform=settings.layers,
        lora_dropout=settings.dropout,
        task_type=task_type(model),
    )


def _classes() -> tuple[type, type]:
    from budwood.methods.shared_lora.config import SharedLoraConfig
    from budwood.methods.shared_lora.tuner import SharedLoraModel

    return SharedLoraConfig, SharedLoraModel


TUNERS = (
    Tuner(
        name="shared_lora",
        learns="A (r, d_in) and B (d_out, r) for each kind of layer: r·(d_in + d_out) numbers a kind",
        paper="https://arxiv.org/abs/2312.00700",
        settings=SharedLoraSettings,
        learning_rate=4e-3,
        make_config=make_config,
        keeps=frozenset(Promise),
        load_classes=_classes,
    ),
)

METHODS = (
    Method(
        name="shared_lora",
        title="one low-rank update for all layers of a kind (the baseline of GIFT)",
        evidence="examples",
        tuner="shared_lora",
        paper="https://arxiv.org/abs/2312.00700",
        bibtex="""@article{savadikar2023gift,
  title = {Generative Parameter-Efficient Fine-Tuning},
  author = {Savadikar, Chinmay and Song, Xi and Wu, Tianfu},
  journal = {arXiv preprint arXiv:2312.00700},
  year = {2023}
}""",
    ),
)
