"""Which modules share parameters: from settings and a module's name to the name of its group.

A group is the set of modules that use one low-rank map. Its name is built from what it means (kinds of module, place,
width, block of layers), so that it stays the same when only a part of the layers is adapted.

A fused layer may have parts that share apart: `c_attn[0:32]` is a kind of its own, the rows 0 to 31 of the W
(d_out, d_in) of `c_attn`, counted as the layer writes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from budwood.errors import ConfigError, nearest

Share = str | Sequence[Sequence[str]]
Rows = tuple[int, int]  # first, and one past the last
_LAYER = re.compile(r"(?:^|\.)\w+\.(\d+)\.")
_SLICE = re.compile(r"(.+)\[(\d+):(\d+)\]")


@dataclass(frozen=True)
class Member:
    """One module that wants a map.

    Args:
        module: its full name.
        kind: what its parameters are shared by; see `kind_of`.
        place: where the map acts.
        width: the width of the vectors that the map reads there.
        written: the width that it writes, where that may differ (a parallel map reads d_in and writes d_out).
    """

    module: str
    kind: str
    place: str
    width: int
    written: int | None = None

    @property
    def layer(self) -> int | None:
        """The index of the first numbered block in the module's name; None outside any block."""
        found = _LAYER.search(self.module)
        return int(found.group(1)) if found else None


def kind_of(module: str, targets: Collection[str] | str | None) -> str:
    """Return the kind of a module: the longest target that its name ends with, or the last part of its name.

    With the targets `attn.c_proj` and `mlp.c_proj`, GPT-2's two output layers are two kinds; with `c_proj`, one.
    """
    listed = () if targets is None or isinstance(targets, str) else targets
    matching = [target for target in listed if module == target or module.endswith(f".{target}")]
    return max(matching, key=len, default=module.rpartition(".")[2])


def split_slice(kind: str) -> tuple[str, Rows | None]:
    """Return ("c_attn", (0, 32)) for "c_attn[0:32]", and ("q_proj", None) for "q_proj"."""
    found = _SLICE.fullmatch(kind)
    return (found[1], (int(found[2]), int(found[3]))) if found else (kind, None)


@dataclass(frozen=True)
class Grouping:
    """The rule that assigns members to groups.

    Args:
        share: "type" (one map per kind of module), "all" (one for every module), "none" (one per module), or lists
            of kinds that share one; a kind in no list forms a group of its own. Lists may hold slices of a kind.
        depth: True shares over all layers, False gives each layer its own, n shares over blocks of n layers.
    """

    share: Share = "type"
    depth: bool | int = True

    def name(self, member: Member) -> str:
        """Return the name of the group of `member`, without dots."""
        if self.share == "none":
            shared, block = member.module, ""
        else:
            shared, block = self.label(member.kind), self._block(member)
        widths = f"{member.width}" if member.written is None else f"{member.width}x{member.written}"
        return f"{shared.replace('.', '-')}-{member.place}-{widths}{block}"

    def label(self, kind: str) -> str:
        """Return the kinds that share a map within one layer with `kind`: `q_proj+k_proj`, or `all`."""
        if self.share == "all":
            return "all"
        if not isinstance(self.share, str):
            for kinds in self.share:
                if kind in kinds:
                    return "+".join(kinds)
        return kind

    def parts(self, kind: str) -> tuple[str, ...]:
        """Return the slices that the lists name of a kind, by their rows; the kind itself where they name none."""
        listed = () if isinstance(self.share, str) else [split_slice(name) for group in self.share for name in group]
        rows = sorted(rows for name, rows in listed if name == kind and rows is not None)
        return tuple(f"{kind}[{first}:{last}]" for first, last in rows) or (kind,)

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
    kinds = {member.kind for member in members}
    if not isinstance(grouping.share, str):
        for name in (name for group in grouping.share for name in group):
            if name not in kinds:
                raise ConfigError(
                    f"share names {name!r}, which is not among the adapted modules",
                    action=nearest(split_slice(name)[0], kinds),
                )
    if grouping.share == "none":
        return
    _check_sides(grouping, members)
    widths: dict[tuple[str, str], dict[int, str]] = {}
    for member in members:
        label = grouping.label(member.kind)
        if label == member.kind:  # one kind: unequal widths simply make two groups
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


def check_slices(module: str, parts: Iterable[str], out_features: int) -> None:
    """Refuse slices of one module that are empty, overlap, or reach past its end.

    Args:
        parts: what `Grouping.parts` returns for the module's kind.

    Raises:
        ConfigError: names the module and the slice.
    """
    end = 0
    for part in parts:
        rows = split_slice(part)[1]
        if rows is None:
            continue
        if not rows[0] < rows[1] <= out_features:
            raise ConfigError(
                f"the slice {part} of {module}, which writes {out_features} numbers",
                wanted=f"[first:last] with first below last, and last at most {out_features}",
            )
        if rows[0] < end:
            raise ConfigError(f"the slice {part} of {module} overlaps another", wanted="slices without common rows")
        end = rows[1]


def _check_sides(grouping: Grouping, members: Sequence[Member]) -> None:
    """Refuse a group whose kinds act on different sides: they would not share after all."""
    places: dict[str, dict[str, set[str]]] = {}
    for member in members:
        places.setdefault(grouping.label(member.kind), {}).setdefault(member.kind, set()).add(member.place)
    for label, kinds in places.items():
        if len({frozenset(sides) for sides in kinds.values()}) > 1:
            listed = ", ".join(f"{kind} on the {' and '.join(sorted(sides))}" for kind, sides in sorted(kinds.items()))
            raise ConfigError(
                f"the group {label} acts on different sides: {listed}",
                wanted="one side for all that share",
                action="set one side for them, or take them apart in share",
            )


def rank_of(grouping: Grouping, kind: str, ranks: Mapping[str, int], default: int) -> int:
    """Return the rank of the group that `kind` belongs to.

    Args:
        ranks: keyed by group: the kinds joined with '+', or a single kind where it is alone in its group.
    """
    label = grouping.label(kind)
    if kind in ranks and label != kind:
        raise ConfigError(
            f"group_ranks gives {kind!r} a rank of its own, but it shares its map with {label}",
            wanted="one rank per group",
            action=f"write {label!r} as the key, or take {kind!r} out of the group",
        )
    return ranks.get(label, default)


def check_ranks(grouping: Grouping, kinds: Iterable[str], ranks: Mapping[str, int]) -> None:
    """Refuse keys of `group_ranks` that name no group."""
    kinds = set(kinds)
    labels = {grouping.label(kind) for kind in kinds}
    for key in ranks:
        if key not in labels and key not in kinds:
            raise ConfigError(f"group_ranks names {key!r}, which is no group here", action=nearest(key, labels))
