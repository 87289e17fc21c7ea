"""Where the values of a recipe come from: files that extend one another, shipped presets, and names with dots.

Values are nested mappings here; what they mean, and whether they are right, is the affair of `recipe`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from budwood import storage
from budwood.data.problems import described
from budwood.errors import ConfigError, nearest

Values = Mapping[str, Any]
SUFFIX = ".yaml"


def presets() -> dict[str, str]:
    """Return the shipped presets: name to one line, the first comment of its file."""
    files = sorted((entry for entry in _presets().iterdir() if entry.name.endswith(SUFFIX)), key=lambda e: e.name)
    return {file.name.removesuffix(SUFFIX): _first_comment(file.read_text(encoding="utf-8")) for file in files}


def _presets() -> Traversable:
    return resources.files("budwood") / "presets"


def _first_comment(text: str) -> str:
    return text.partition("\n")[0].removeprefix("#").strip()


def read_layers(file: str | Path) -> dict[str, Any]:
    """Return the values of a recipe over those of what it extends, and so on.

    Args:
        file: a YAML file, or the name of a preset where there is no such file.

    Raises:
        ConfigError: a file cannot be read, extends itself in the end, or extends what is neither file nor preset.
    """
    return reduce(merge, reversed(list(_chain(file))))


def _chain(file: str | Path) -> Iterable[dict[str, Any]]:
    """Yield the values of a recipe, then those of what it extends, to the end."""
    seen: list[str] = []
    place: Path | str | None = _place(str(file), Path())
    if place is None:
        raise ConfigError(f"there is no recipe {file}", wanted="a YAML file or a preset", action=_known(str(file)))
    while place is not None:
        name = str(place.resolve()) if isinstance(place, Path) else place
        if name in seen:
            chain = " extends ".join(Path(one).name for one in [*seen[seen.index(name) :], name])
            raise ConfigError(f"recipes extend one another in a circle: {chain}", action="remove one `extends:`")
        seen.append(name)
        values = read(place) if isinstance(place, Path) else _read_preset(place)
        parent = values.pop("extends", None)
        yield nested(values)
        folder = place.parent if isinstance(place, Path) else Path()
        place = None if parent is None else _parent(parent, folder, str(place))


def _parent(parent: Any, folder: Path, child: str) -> Path | str:
    place = _place(parent, folder) if isinstance(parent, str) else None
    if place is None:
        raise ConfigError(
            f"{child}: extends {parent!r}, which is neither a file in {folder} nor a preset",
            wanted="a preset, or the path of a recipe as seen from this one",
            action=_known(str(parent)),
        )
    return place


def _place(name: str, folder: Path) -> Path | str | None:
    """Return the file that a name means, or else the name of a preset, or None."""
    path = folder / name
    if path.is_file():
        return path
    return name if name in presets() else None


def _known(name: str) -> str:
    return f"{nearest(name, presets())} (see `budwood config presets`)"


def _read_preset(name: str) -> dict[str, Any]:
    return _parsed((_presets() / f"{name}{SUFFIX}").read_text(encoding="utf-8"), f"preset {name}")


def read(path: Path) -> dict[str, Any]:
    """Return the values of one file, as they stand there.

    Raises:
        ConfigError: it cannot be read, or does not hold keys and values.
    """
    try:
        with storage.guarded(path):
            text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", wanted="a YAML file in UTF-8") from None
    return _parsed(text, str(path))


def _parsed(text: str, name: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        found = "is empty" if values is None else f"holds {described(values)}"
        raise ConfigError(f"{name} {found}", wanted="keys and values, like `training: {epochs: 2}`")
    return values


def nested(values: Values) -> dict[str, Any]:
    """Turn keys with dots into blocks."""
    made: dict[str, Any] = {}
    for key, value in values.items():
        block: Any = value if not isinstance(value, Mapping) else nested(value)
        for part in reversed(str(key).split(".")):
            block = {part: block}
        made = merge(made, block)
    return made


def merge(below: Values, above: Values) -> dict[str, Any]:
    """Return `above` over `below`, block by block.

    Another tuner's name drops the settings of the one below; evidence with a kind replaces the evidence below.
    """
    made = dict(below)
    for key, value in above.items():
        old = made.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            made[key] = dict(value) if _replaces(key, old, value) else merge(old, value)
        else:
            made[key] = value
    return made


def _replaces(key: str, old: Values, new: Values) -> bool:
    if key == "tuner":
        return "name" in old and new.get("name", old["name"]) != old["name"]
    return key == "evidence" and "kind" in new
