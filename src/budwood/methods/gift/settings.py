"""From `GiftSettings`, which may name roles, to a `GiftConfig`, which names this model's modules."""

from __future__ import annotations

from transformers import PreTrainedModel

from budwood.methods.gift import GiftSettings
from budwood.methods.gift.config import GiftConfig
from budwood.models import Site, matching_sites, resolve_targets
from budwood.tuning.groups import kind_of, split_slice
from budwood.tuning.targets import task_type


def to_config(settings: GiftSettings, model: PreTrainedModel) -> GiftConfig:
    """Return the PEFT configuration for `model`.

    Raises:
        ConfigError: a role or a name that this model does not have.
    """
    wanted = ["all"] if settings.targets == "all" else settings.targets
    leaves = resolve_targets(model, wanted)
    sides = {kind_of(site.name, leaves): _side(settings, site) for site in matching_sites(model, leaves)}
    return GiftConfig(
        r=settings.rank,
        gift_alpha=settings.alpha,
        target_modules=leaves,
        layers_to_transform=settings.layers,
        side=sides,
        share=_share(settings, model),
        share_depth=settings.share_depth,
        group_ranks={_label(model, key): rank for key, rank in settings.group_ranks.items()},
        gift_dropout=settings.dropout,
        init_weights=True if settings.init == "auto" else settings.init,
        nonlinearity=settings.nonlinearity,
        task_type=task_type(model),
    )


def _side(settings: GiftSettings, site: Site) -> str:
    side = settings.side
    if isinstance(side, dict):
        side = side.get(site.leaf) or side.get(site.role or "") or "auto"
    if side != "auto":
        return side
    # Layers that narrow (d_ff -> d) are edited where they are narrow: φ and ψ keep the model's width.
    narrows = site.role == "down" or (site.role is None and site.in_features > site.out_features)
    return "output" if narrows else "input"


def _share(settings: GiftSettings, model: PreTrainedModel) -> str | list[list[str]]:
    if isinstance(settings.share, str):
        return settings.share
    return [[name for word in group for name in _names(model, word)] for group in settings.share]


def _names(model: PreTrainedModel, word: str) -> list[str]:
    """Return the names of a role or a name; a slice of it, `qkv[0:32]`, stays one."""
    role, rows = split_slice(word)
    ending = "" if rows is None else f"[{rows[0]}:{rows[1]}]"
    return [f"{name}{ending}" for name in resolve_targets(model, [role])]


def _label(model: PreTrainedModel, key: str) -> str:
    return "+".join(name for part in key.split("+") for name in _names(model, part))
