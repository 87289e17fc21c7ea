"""Which linear layers a model has, and what each is for. The only file that knows how architectures call them.

A *site* is a linear layer inside one of the model's layers: never an embedding, an output head or a classifier.
Its *role* is the same word in every architecture:

    q k v o            the four projections of attention         qkv      q, k and v in one matrix (GPT-2, NeoX, Phi-3)
    gate up down       the feed-forward block                    gate_up  gate and up in one matrix (Phi-3)

An architecture that is not known here still works: its sites have no role and are asked for by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from budwood.errors import ConfigError, nearest

# Last part of a module's name -> role, where some parent's name says that it is attention.
_ATTENTION = {
    **dict.fromkeys(("q_proj", "q", "query", "q_lin", "query_proj"), "q"),
    **dict.fromkeys(("k_proj", "k", "key", "k_lin", "key_proj"), "k"),
    **dict.fromkeys(("v_proj", "v", "value", "v_lin", "value_proj"), "v"),
    **dict.fromkeys(("o_proj", "o", "out_proj", "out_lin", "dense", "c_proj", "Wo", "wo"), "o"),
    **dict.fromkeys(("c_attn", "query_key_value", "qkv_proj", "Wqkv", "wqkv", "qkv"), "qkv"),
}
# The last part, or the last two, elsewhere.
_FEED_FORWARD = {
    **dict.fromkeys(("gate_proj", "wi_0", "w1"), "gate"),
    **dict.fromkeys(("up_proj", "wi", "wi_1", "w3", "fc1", "fc_in", "c_fc", "lin1", "dense_h_to_4h"), "up"),
    **dict.fromkeys(("down_proj", "wo", "w2", "fc2", "fc_out", "c_proj", "lin2", "dense_4h_to_h"), "down"),
    **dict.fromkeys(("intermediate.dense", "ffn"), "up"),
    **dict.fromkeys(("output.dense", "ffn_output", "mlp.Wo"), "down"),
    **dict.fromkeys(("gate_up_proj", "mlp.Wi"), "gate_up"),
}
_FUSED = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}


@runtime_checkable
class _LinearLike(Protocol):
    """`nn.Linear` and the quantised layers that stand in for it; each backend has a class of its own."""

    in_features: int
    out_features: int


@dataclass(frozen=True)
class Site:
    """A linear layer that can be adapted.

    Args:
        name: its full name in the model, "model.layers.0.self_attn.q_proj".
        leaf: the shortest end of the name that means this role and nothing else, "q_proj" or "attn.c_proj".
        role: what it is for, or None in an architecture that is not known.
        layer: the index of the layer it lies in.
        in_features: length of the vector it reads.
        out_features: length of the vector it writes.
    """

    name: str
    leaf: str
    role: str | None
    layer: int
    in_features: int
    out_features: int


class Hit(NamedTuple):
    """How many sites of one kind there are, and their shape."""

    leaf: str
    role: str | None
    sites: int
    in_features: int
    out_features: int


def find_sites(model: PreTrainedModel) -> list[Site]:
    """Return all sites in the model's order. Weights are not looked at: a model on the meta device will do."""
    found: dict[str, tuple[int, str, nn.Module]] = {}
    containers: set[str] = set()
    heads = {id(model.get_output_embeddings()), id(model.get_input_embeddings())}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            containers.add(name)
        elif isinstance(module, _LinearLike | Conv1D) and id(module) not in heads:
            if (place := _place(name, containers)) is not None:
                found[name] = (*place, module)
    roles = {name: _role(path) for name, (_, path, _) in found.items()}
    ends = _roles_by_end(model, roles)
    return [
        Site(name, _leaf(path, roles[name], ends), roles[name], layer, *_features(module))
        for name, (layer, path, module) in found.items()
    ]


def _place(name: str, containers: set[str]) -> tuple[int, str] | None:
    """The layer's index and the rest of the name below it; None outside the layers."""
    parts = name.split(".")
    for i in range(1, len(parts) - 1):
        if ".".join(parts[:i]) in containers and parts[i].isdecimal():
            return int(parts[i]), ".".join(parts[i + 1 :])
    return None


def _role(path: str) -> str | None:
    *parents, last = path.split(".")
    if any("attn" in parent.lower() or "attention" in parent.lower() for parent in parents):
        return _ATTENTION.get(last)
    return _FEED_FORWARD.get(".".join([*parents[-1:], last]), _FEED_FORWARD.get(last))


def _roles_by_end(model: PreTrainedModel, roles: dict[str, str | None]) -> dict[str, set[str | None]]:
    """Every end of a module's name -> the roles of the modules that end so; "not a site" counts as one."""
    ends: dict[str, set[str | None]] = defaultdict(set)
    for name, _ in model.named_modules():
        for end in _ends(name):
            ends[end].add(roles.get(name, "not a site"))
    return ends


def _ends(name: str) -> list[str]:
    """ "a.b.c" -> "c", "b.c", "a.b.c"."""
    parts = name.split(".")
    return [".".join(parts[i:]) for i in reversed(range(len(parts)))]


def _leaf(path: str, role: str | None, ends: dict[str, set[str | None]]) -> str:
    return next((end for end in _ends(path) if ends[end] == {role}), path)


def _features(module: nn.Module) -> tuple[int, int]:
    if isinstance(module, Conv1D):  # stores its weight as (in, out)
        return module.nx, module.nf
    assert isinstance(module, _LinearLike)
    return module.in_features, module.out_features


def resolve_targets(model: PreTrainedModel, wanted: Iterable[str]) -> list[str]:
    """Return names for PEFT's `target_modules` that hit the wanted sites and no other module.

    Args:
        model: the base, not yet wrapped by PEFT.
        wanted: roles, names, or ends of names ("o", "q_proj", "self_attn.out_proj"); "all" is every site. Where a word
            is both, the role is meant.

    Returns:
        Leaves. Where no leaf separates the wanted sites from others (the "down" of BERT is `output.dense`, as its
        "o" is `attention.output.dense`), the full names.

    Raises:
        ConfigError: a wanted word that no site answers to; lists the kinds of sites that there are.
    """
    sites = find_sites(model)
    chosen = {site.name for word in wanted for site in _answering(word, sites)}
    if not chosen:
        raise ConfigError("no layer was asked for", wanted=_kinds(sites))
    modules = [name for name, _ in model.named_modules()]
    targets: dict[str, None] = {}
    for site in sites:
        if site.name in chosen:
            exact = all(name in chosen for name in modules if _ends_with(name, site.leaf))
            targets[site.leaf if exact else site.name] = None
    return list(targets)


def _answering(word: str, sites: Sequence[Site]) -> list[Site]:
    found = [site for site in sites if word in ("all", site.role)]
    found = found or [site for site in sites if _ends_with(site.name, word)]
    if found:
        return found
    fused = _FUSED.get(word)
    if fused in {site.role for site in sites}:
        action = f"ask for {fused!r}: this model has one matrix for them"
    else:
        action = "ask for one of these roles or names, or for 'all'"
    known = {site.role for site in sites if site.role} | {site.leaf for site in sites} | {"all"}
    raise ConfigError(
        f"no layer of this model answers to {word!r}", wanted=f"{nearest(word, known)}\n{_kinds(sites)}", action=action
    )


def _ends_with(name: str, end: str) -> bool:
    """PEFT's rule for a name in `target_modules`."""
    return name == end or name.endswith(f".{end}")


def matching_sites(model: PreTrainedModel, targets: Iterable[str]) -> list[Site]:
    """Return the sites that PEFT adapts with these `target_modules`."""
    targets = list(targets)
    return [site for site in find_sites(model) if any(_ends_with(site.name, target) for target in targets)]


def hit_table(model: PreTrainedModel, targets: Iterable[str]) -> list[Hit]:
    """Return how many sites of each kind and shape `targets` (from `resolve_targets`) hit, in the model's order."""
    return _count(matching_sites(model, targets))


def _count(sites: Sequence[Site]) -> list[Hit]:
    counts: dict[tuple[str, str | None, int, int], int] = defaultdict(int)
    for site in sites:
        counts[site.leaf, site.role, site.in_features, site.out_features] += 1
    return [Hit(leaf, role, count, fan_in, fan_out) for (leaf, role, fan_in, fan_out), count in counts.items()]


def _kinds(sites: Sequence[Site]) -> str:
    """The kinds of sites as a small table."""
    rows = [
        (hit.role or "-", hit.leaf, f"{hit.sites} x", f"{hit.in_features} -> {hit.out_features}")
        for hit in _count(sites)
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    return "\n".join("    " + "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[3]]) for row in rows)
