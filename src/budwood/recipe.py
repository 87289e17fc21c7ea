"""A recipe: everything that decides a run, as one value with a schema.

It comes from four places, each over the one before: a shipped preset (`extends:`), the recipe file, `--set a.b=v`,
and the flags. The resolved recipe is written into the run, and from it the run can be made again.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache, reduce
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from budwood import storage
from budwood.data.settings import DataSettings
from budwood.errors import ConfigError, nearest
from budwood.evidence import Documents, Evidence, Examples, Instruction, Repair
from budwood.training.settings import TrainingSettings
from budwood.tuning.protocol import Tuner, TunerSettings
from budwood.tuning.registry import default_method, find_method, find_tuner, tuners

Values = Mapping[str, Any]


class EvidenceSettings(BaseModel):
    """What the user has: paths of files, or the text of an instruction."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["examples", "documents", "instruction", "repair"]
    paths: tuple[Path, ...] = Field((), description="files or folders (all kinds but an instruction)")
    text: str | None = Field(None, description="the instruction")
    pairs: tuple[tuple[str, str], ...] = Field((), description="worked examples of an instruction: input, output")

    def value(self) -> Evidence:
        """Return the evidence as the public API knows it."""
        if self.kind == "instruction":
            return Instruction(self.text or "", self.pairs)
        kinds: dict[str, type[Examples | Documents | Repair]] = {
            "examples": Examples,
            "documents": Documents,
            "repair": Repair,
        }
        return kinds[self.kind](tuple(self.paths))


class RecipeBase(BaseModel):
    """The parts of a recipe that do not depend on which tuners there are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(description="the base: smollm2, org/name[@revision], a folder, or file.gguf, perhaps +nf4")
    evidence: EvidenceSettings = Field(description="what the adapter is made from")
    method: str = Field(description="how evidence becomes an adapter; `budwood methods` lists them")
    data: DataSettings = Field(DataSettings(), description="how rows become batches")
    training: TrainingSettings = Field(TrainingSettings(), description="how long, how fast, how often")
    seed: int = Field(0, ge=0, description="decides the adapter's start, the order of rows and the split")


class Recipe(RecipeBase):
    """A whole recipe; `tuner` holds the settings of one tuner, told apart by `name`."""

    tuner: TunerSettings

    @property
    def tuner_name(self) -> str:
        return str(self.tuner.name)  # type: ignore[attr-defined]  # every member of the union has it

    def to_yaml(self) -> str:
        """Return the recipe as YAML that `load` reads back to an equal value."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


@cache
def recipe_class() -> type[Recipe]:
    """Return `Recipe` with `tuner` as the union of what the registry lists."""
    choices = tuple(_choice(tuner) for tuner in tuners().values())
    union = Annotated[Union[choices], Field(discriminator="name")]  # type: ignore[valid-type]  # noqa: UP007
    return create_model("Recipe", __base__=Recipe, tuner=(union, ...))


def _choice(tuner: Tuner) -> type[TunerSettings]:
    fields: dict[str, Any] = {"name": (Literal[tuner.name], tuner.name)}
    return create_model(tuner.settings.__name__, __base__=tuner.settings, __doc__=tuner.settings.__doc__, **fields)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a recipe file."""
    made = recipe_class().model_json_schema()
    made["properties"]["extends"] = {"type": "string", "description": "a shipped preset that this recipe changes"}
    made["required"] = [name for name in made.get("required", []) if name not in ("method", "tuner", "evidence")]
    return made


def resolve(file: str | Path | None, *layers: Values) -> Recipe:
    """Build a recipe from a file and from layers of values, later ones over earlier ones.

    Args:
        file: a YAML recipe, the name of a preset, or None.
        layers: nested mappings; a key with dots reaches into a block (`{"training.epochs": 2}`).

    Raises:
        ConfigError: an unknown key (with the nearest name), a wrong value, or a file that cannot be read.
    """
    values = reduce(_merge, [_nested(layer) for layer in layers], _read_layers(file) if file else {})
    return build(_with_defaults(values))


def build(values: Values) -> Recipe:
    """Validate a complete mapping."""
    try:
        return recipe_class().model_validate(values)
    except ValidationError as error:
        raise _explained(error) from None


def load(path: str | Path) -> Recipe:
    """Read the resolved recipe of a run."""
    return build(_read(Path(path)))


def presets() -> list[str]:
    """Return the names of the shipped presets."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _presets().iterdir() if entry.name.endswith(".yaml"))


def _presets() -> Any:
    return resources.files("budwood") / "presets"


def _with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in what follows from other values: the method from the evidence, the tuner from the method."""
    values = dict(values)
    evidence = values.get("evidence") or {}
    if "method" not in values and isinstance(evidence, Mapping) and "kind" in evidence:
        values["method"] = default_method(str(evidence["kind"])).name
    if "method" in values:
        method = find_method(str(values["method"]))
        tuner = values.get("tuner") or {}
        if isinstance(tuner, Mapping):
            values["tuner"] = {"name": method.tuner, **tuner}
            chosen = find_tuner(str(values["tuner"]["name"]))
            values["training"] = _with_learning_rate(values.get("training") or {}, chosen)
        if isinstance(evidence, Mapping) and evidence.get("kind", method.evidence) != method.evidence:
            raise ConfigError(
                f"the method {method.name} takes {method.evidence}, not {evidence['kind']}",
                action=f"use --{method.evidence}, or another --method",
            )
    return values


def _with_learning_rate(training: Any, tuner: Tuner) -> Any:
    if isinstance(training, Mapping) and training.get("learning_rate") is None:
        return {**training, "learning_rate": tuner.learning_rate}
    return training


def _read_layers(file: str | Path) -> dict[str, Any]:
    """Return the values of a recipe file over those of the preset that it extends."""
    path = Path(file)
    if not path.exists() and str(file) in presets():
        return dict(_parsed((_presets() / f"{file}.yaml").read_text(encoding="utf-8"), f"preset {file}"))
    values = _read(path)
    parent = values.pop("extends", None)
    if parent is None:
        return _nested(values)
    if parent not in presets():
        raise ConfigError(f"{path}: extends {parent!r}, which is no preset", action=nearest(str(parent), presets()))
    return _merge(_read_layers(str(parent)), _nested(values))


def _read(path: Path) -> dict[str, Any]:
    try:
        with storage.guarded(path):
            text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no recipe {path}", wanted="a YAML file or a preset", action=nearest(str(path), presets())
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", wanted="a YAML file in UTF-8") from None
    return _parsed(text, str(path))


def _parsed(text: str, name: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"{name} holds {type(values).__name__}", wanted="keys and values, like `training: {epochs: 2}`"
        )
    return values


def _nested(values: Values) -> dict[str, Any]:
    """Turn keys with dots into blocks."""
    made: dict[str, Any] = {}
    for key, value in values.items():
        block: Any = value if not isinstance(value, Mapping) else _nested(value)
        for part in reversed(str(key).split(".")):
            block = {part: block}
        made = _merge(made, block)
    return made


def _merge(below: Values, above: Values) -> dict[str, Any]:
    """Return `above` over `below`, block by block. Another tuner's name drops the settings of the one below."""
    made = dict(below)
    for key, value in above.items():
        old = made.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            renamed = key == "tuner" and "name" in old and value.get("name", old["name"]) != old["name"]
            made[key] = dict(value) if renamed else _merge(old, value)
        else:
            made[key] = value
    return made


def _explained(error: ValidationError) -> ConfigError:
    """Turn pydantic's first complaint into got, wanted, to do."""
    first = error.errors(include_url=False)[0]
    where = [str(part) for part in first["loc"]]
    if len(where) > 1 and where[0] == "tuner":
        where.pop(1)  # the tag of the union
    key = ".".join(where)
    if first["type"] == "extra_forbidden":
        return ConfigError(f"there is no setting {key!r}", action=nearest(where[-1], _siblings(where[:-1])))
    if first["type"] == "missing":
        return ConfigError(f"the recipe does not say {key!r}", action="add it, or give the flag of that name")
    return ConfigError(f"{key} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}")


def _siblings(where: list[str]) -> Iterable[str]:
    """Return the names of the settings in a block."""
    blocks: dict[str, type[BaseModel]] = {"data": DataSettings, "training": TrainingSettings}
    blocks["evidence"] = EvidenceSettings
    if not where:
        return Recipe.model_fields
    if where[0] == "tuner":
        return {name for tuner in tuners().values() for name in tuner.settings.model_fields}
    return blocks[where[0]].model_fields if where[0] in blocks else ()


def differences(old: Recipe, new: Recipe) -> list[str]:
    """Return the lines in which two recipes differ, for the error that refuses to resume another run."""
    lines = difflib.unified_diff(old.to_yaml().splitlines(), new.to_yaml().splitlines(), lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))]
