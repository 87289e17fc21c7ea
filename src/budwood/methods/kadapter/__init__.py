"""K-Adapter: side blocks that read the frozen base's layers and add to its last hidden state.

Paper: https://arxiv.org/abs/2002.01808 (Wang et al., 2021). The base is not changed at any place, and no gradient goes
through it: only the side blocks and the output head have a backward pass. README.md beside this file states the
equations, what is learned and where we deviate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from budwood.tuning.protocol import Promise, Tuner, TunerSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from budwood.methods.kadapter.config import KAdapterConfig

METHODS = ()


class KAdapterSettings(TunerSettings):
    """Settings of K-Adapter."""

    width: int = Field(128, ge=1, description="hidden units of each side block")
    reads: list[int] | None = Field(
        None, min_length=1, description="indices of the layers whose output is read; none: first, middle and last"
    )


def make_config(settings: KAdapterSettings, model: PreTrainedModel) -> KAdapterConfig:
    """Return the configuration for this model: the layers that are read, and the norm behind which is added."""
    from budwood.methods.kadapter.config import KAdapterConfig, last_norm, read_layers
    from budwood.tuning.targets import task_type

    return KAdapterConfig(
        width=settings.width,
        reads=read_layers(model, settings.reads),
        target_modules=[last_norm(model)],
        task_type=task_type(model),
    )


def _classes() -> tuple[type, type]:
    from budwood.methods.kadapter.config import KAdapterConfig
    from budwood.methods.kadapter.tuner import KAdapterModel

    return KAdapterConfig, KAdapterModel


BESIDE = "its blocks stand beside the base and bend: no change of a weight does what they do"

TUNERS = (
    Tuner(
        name="kadapter",
        learns="two matrices with biases for each layer of the base that is read: width·(2d + 1) + d numbers a layer",
        paper="https://arxiv.org/abs/2002.01808",
        settings=KAdapterSettings,
        learning_rate=1e-3,
        make_config=make_config,
        keeps=frozenset({Promise.IDENTITY, Promise.SEVERAL, Promise.GENERATE}),
        refuses={Promise.MERGE: BESIDE, Promise.LORA: BESIDE},
        load_classes=_classes,
    ),
)
