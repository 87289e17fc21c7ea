"""What decided a run, for its page: settings by what they are about, in words, each with its meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from budwood._texts import flat
from budwood.data.settings import DataSettings
from budwood.training.settings import TrainingSettings
from budwood.tuning.registry import methods, tuners

Row = tuple[str, Any, str]  # label, value, what it means


@dataclass(frozen=True)
class Group:
    """Settings that belong together."""

    title: str
    rows: tuple[Row, ...]


def groups(recipe: Mapping[str, Any]) -> list[Group]:
    """Return the settings of a resolved recipe by what they are about; what is not set is left out."""
    blocks = {name: recipe.get(name) or {} for name in ("tuner", "learner", "data", "training")}
    rest = {name: value for name, value in recipe.items() if name not in blocks}
    found = [
        Group("What it was made from, and how", tuple(_rows(rest, None))),
        Group("The adapter", tuple(_rows(blocks["tuner"], _settings_of(tuners(), blocks["tuner"])))),
        Group("The method", tuple(_rows(blocks["learner"], _settings_of(methods(), blocks["learner"])))),
        Group("Data", tuple(_rows(blocks["data"], DataSettings))),
        Group("Training", tuple(_rows(blocks["training"], TrainingSettings))),
    ]
    return [group for group in found if group.rows]


def labelled(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the leaves of a nested mapping under their names in words, without what is not set."""
    return [(label(name), value) for name, value in flat(values) if value not in (None, "", [], {})]


def label(name: str) -> str:
    """Return a dotted name in words: `length_tokens.max` is "length tokens: max"."""
    return name.replace("_", " ").replace(".", ": ")


def counts(rows: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the counts of a data report; what was dropped or looked wrong by its reason, with the first places."""
    named = ("dropped", "remarks")
    plain = {name: value for name, value in rows.items() if name not in (*named, "problems")}
    found = labelled(plain)
    for name, word in zip(named, ("dropped", "to look at")):
        for reason, where in (rows.get(name) or {}).items():
            first = ", ".join(where["first"])
            more = f", and {where['count'] - len(where['first']):,} more" * (where["count"] > len(where["first"]))
            found.append((f"{word}: {reason}", f"{where['count']:,}: {first}{more}" if first else where["count"]))
    return found


def _settings_of(known: Mapping[str, Any], block: Mapping[str, Any]) -> type[BaseModel] | None:
    """Return the class of a block's settings; None for one that this version does not have."""
    one = known.get(str(block.get("name")))
    return one.settings if one is not None else None


def _rows(values: Mapping[str, Any], settings: type[BaseModel] | None) -> Iterator[Row]:
    fields = settings.model_fields if settings is not None else {}
    for name, value in flat(values):
        if value not in (None, "", [], {}):
            field = fields.get(name.partition(".")[0])
            yield label(name), value, (field.description or "") if field is not None else ""
