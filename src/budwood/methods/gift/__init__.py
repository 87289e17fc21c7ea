"""GIFT: labelled examples in, fine-tuned weights generated from the pretrained ones.

    Ŵ = W (I + s φψ)   input side            Ŵ = (I + s φψ) W   output side

Paper: https://arxiv.org/abs/2312.00700. Learned: one pair φ (d, r), ψ (r, d) for each *group* of layers, so
2·d·r numbers a group however many layers use it. Deviations from the authors' code are listed in README.md beside
this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from budwood.tuning.protocol import Method, Promise, Tuner, TunerSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from budwood.methods.gift.config import GiftConfig

Side = Literal["auto", "input", "output", "both"]


class GiftSettings(TunerSettings):
    """Settings of GIFT. Names of modules may be roles: q k v o gate up down."""

    rank: int = Field(32, ge=1, description="rank r of φψ")
    alpha: float | None = Field(None, description="none: s = 1; a number: s = alpha / rank")
    targets: list[str] | Literal["all"] = Field("all", description="linear layers to adapt, by role or by name")
    layers: list[int] | None = Field(None, description="indices of the layers to adapt; all by default")
    side: Side | dict[str, Side] = Field(
        "auto",
        description="where φψ acts; auto: the output of layers that narrow back to the model's width (down), "
        "else the input; a mapping gives sides by role or name",
    )
    share: Literal["type", "all", "none"] | list[list[str]] = Field(
        "type",
        description="one φψ per kind of layer, one for all, one each, or lists of kinds that share one; "
        "qkv[0:768] is a slice, the first 768 rows of a fused layer",
    )
    share_depth: bool | int = Field(True, description="share over all layers, none, or blocks of that many")
    group_ranks: dict[str, int] = Field({}, description="ranks that differ, by group (names joined with +)")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the vector that ψ reads")
    init: Literal["auto", "psi_zero", "phi_zero"] = Field(
        "auto", description="the factor that starts at zero; auto: ψ, or φ where ψ stands inside a sigmoid"
    )
    nonlinearity: Literal["identity", "gelu", "sigmoid", "mlp"] = Field(
        "identity",
        description="g in g(W φ) ψ and φ g(ψ W); others than the identity need a base with readable weights",
    )


def make_config(settings: GiftSettings, model: PreTrainedModel) -> GiftConfig:
    """Turn settings, with roles in them, into a `GiftConfig` with this model's module names."""
    from budwood.methods.gift.settings import to_config

    return to_config(settings, model)


def _classes() -> tuple[type, type]:
    from budwood.methods.gift.config import GiftConfig
    from budwood.methods.gift.tuner import GiftModel

    return GiftConfig, GiftModel


TUNERS = (
    Tuner(
        name="gift",
        learns="φ (d, r) and ψ (r, d) for each group of layers: 2·d·r numbers a group",
        paper="https://arxiv.org/abs/2312.00700",
        settings=GiftSettings,
        learning_rate=3e-3,
        make_config=make_config,
        keeps=frozenset(Promise),
        load_classes=_classes,
    ),
)

METHODS = (
    Method(
        name="gift",
        title="fine-tuned weights generated from the pretrained ones",
        evidence="examples",
        tuner="gift",
        default=True,
        paper="https://arxiv.org/abs/2312.00700",
        bibtex="""@article{savadikar2023gift,
  title = {Generative Parameter-Efficient Fine-Tuning},
  author = {Savadikar, Chinmay and Song, Xi and Wu, Tianfu},
  journal = {arXiv preprint arXiv:2312.00700},
  year = {2023}
}""",
    ),
)
