"""Which modules share parameters: from settings and a module's name to the name of its group.

A group is the set of modules that use one low-rank map. Its name is built from what it means (module names, place,
width, block of layers), so that it stays the same when only a part of the layers is adapted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from budwood.errors import ConfigError, nearest

Share = str | Sequence[Sequence[str]]
_LAYER = re.compile(r"(?:^|\.)\w+\.(\d+)\.")


@dataclass(frozen=True)
class Member:
    """One module that wants a map: its full name, the place of the map, and the width there."""

    module: str
    place: str
    width: int

    @property
    def leaf(self) -> str:
        return self.module.rpartition(".")[2]

    @property
    def layer(self) -> int | None:
        """The index of the first numbered block in the module's name; None outside any block."""
        found = _LAYER.search(self.module)
        return int(found.group(1)) if found else None


@dataclass(frozen=True)
class Grouping:
    """The rule that assigns members to groups.

    Args:
        share: "type" (one map per module name), "all" (one for every module), "none" (one per module), or lists of
            module names that share one; a name in no list forms a group of its own.
        depth: True shares over all layers, False gives each layer its own, n shares over blocks of n layers.
    """

    share: Share = "type"
    depth: bool | int = True

    def name(self, member: Member) -> str:
        """Return the name of the group of `member`, without dots."""
        if self.share == "none":
            return f"{member.module.replace('.', '-')}-{member.place}-{member.width}"
        return f"{self._kin(member)}-{member.place}-{member.width}{self._block(member)}"

    def kin(self, leaf: str) -> tuple[str, ...]:
        """Return the module names that share with `leaf` within one layer; empty for "all"."""
        if self.share == "all":
            return ()
        if not isinstance(self.share, str):
            for names in self.share:
                if leaf in names:
                    return tuple(names)
        return (leaf,)

    def label(self, leaf: str) -> str:
        """Return the part of the group's name that says which module names share: `q_proj+k_proj`, or `all`."""
        return "+".join(self.kin(leaf)) or "all"

    def _kin(self, member: Member) -> str:
        return self.label(member.leaf)

    def _block(self, member: Member) -> str:
        if self.depth is True:
            return ""
        size = 1 if self.depth is False else self.depth
        return "-outside" if member.layer is None else f"-block{member.layer // size}"


def check_share(share: Share) -> None:
    """Refuse a `share` that is neither a known word nor disjoint lists of names."""
    if isinstance(share, str):
        if share not in ("type", "all", "none"):
            raise ConfigError(f"share={share!r}", wanted="'type', 'all', 'none', or lists of module names")
        return
    names = [name for group in share for name in group]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"share lists {', '.join(twice)} more than once", wanted="each module name in one list")


def check_members(grouping: Grouping, members: Iterable[Member]) -> None:
    """Refuse groups that were asked for by name but cannot be: a missing module, or unequal widths.

    Raises:
        ConfigError: names the modules and their widths.
    """
    members = list(members)
    leaves = {member.leaf for member in members}
    if not isinstance(grouping.share, str):
        for name in (name for group in grouping.share for name in group):
            if name not in leaves:
                raise ConfigError(
                    f"share names {name!r}, which is not among the adapted modules", action=nearest(name, leaves)
                )
    if grouping.share == "none":
        return
    widths: dict[tuple[str, str], dict[int, str]] = {}
    for member in members:
        label = grouping.label(member.leaf)
        if label == member.leaf:  # one module name: unequal widths simply make two groups
            continue
        widths.setdefault((label, member.place), {}).setdefault(member.width, member.module)
    for (label, place), found in widths.items():
        if len(found) > 1:
            listed = ", ".join(f"{module} has {width}" for width, module in sorted(found.items()))
            raise ConfigError(
                f"the group {label} ({place} side) holds modules of unequal width: {listed}",
                wanted=f"one {place} width in a group",
                action="share by 'type', list only modules of one width, or put some on the other side",
            )


def rank_of(grouping: Grouping, leaf: str, ranks: Mapping[str, int], default: int) -> int:
    """Return the rank of the group that `leaf` belongs to.

    Args:
        ranks: keyed by group: the names joined with '+', or a single module name where it is alone in its group.
    """
    label = grouping.label(leaf)
    if leaf in ranks and label != leaf:
        raise ConfigError(
            f"group_ranks gives {leaf!r} a rank of its own, but it shares its map with {label}",
            wanted="one rank per group",
            action=f"write {label!r} as the key, or take {leaf!r} out of the group",
        )
    return ranks.get(label, default)


def check_ranks(grouping: Grouping, leaves: Iterable[str], ranks: Mapping[str, int]) -> None:
    """Refuse keys of `group_ranks` that name no group."""
    leaves = set(leaves)
    labels = {grouping.label(leaf) for leaf in leaves}
    for key in ranks:
        if key not in labels and key not in leaves:
            raise ConfigError(f"group_ranks names {key!r}, which is no group here", action=nearest(key, labels))
