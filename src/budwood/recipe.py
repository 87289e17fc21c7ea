"""A recipe: everything that decides a run, as one value with a schema.

It comes from four places, each over the one before: a shipped preset (`extends:`), the recipe file, `--set a.b=v`,
and the flags. The resolved recipe is written into the run, and from it the run can be made again.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache, reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from budwood._defaults import LEARNER, with_defaults
from budwood._layers import Values, merge, nested, presets, read, read_layers
from budwood.data.settings import DataSettings
from budwood.errors import ConfigError, nearest
from budwood.evidence import Documents, Evidence, Examples, Instruction, Repair
from budwood.training.settings import TrainingSettings
from budwood.tuning.protocol import LearnerSettings, Method, TunerSettings
from budwood.tuning.registry import find_method, methods, tuners

__all__ = ["LEARNER", "Recipe", "build", "differences", "load", "outline", "presets", "resolve", "schema"]


class EvidenceSettings(BaseModel):
    """What the user has: paths of files, or the text of an instruction."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["examples", "documents", "instruction", "repair"]
    paths: tuple[Path, ...] = Field(
        (), description="files or folders, as seen from the working directory (all kinds but an instruction)"
    )
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
    """A whole recipe; `tuner` and `learner` hold the settings of one tuner and one method, told apart by `name`."""

    tuner: TunerSettings
    learner: LearnerSettings | None = None

    @property
    def tuner_name(self) -> str:
        return str(self.tuner.name)  # type: ignore[attr-defined]  # every member of the union has it

    def to_yaml(self) -> str:
        """Return the recipe as YAML that `load` reads back to an equal value."""
        values = self.model_dump(mode="json")
        if self.learner is None:  # most methods have no settings of their own
            del values["learner"]
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


@cache
def recipe_class() -> type[Recipe]:
    """Return `Recipe` with `tuner` and `learner` as the unions of what the registry lists."""
    tuner = _union([_choice(one.name, one.settings) for one in tuners().values()])
    learner = _union([_choice(one.name, one.settings) for one in _with_settings()])
    return create_model("Recipe", __base__=Recipe, tuner=(tuner, ...), learner=(Union[learner, None], None))  # noqa: UP007


def _with_settings() -> list[Method]:
    return [method for method in methods().values() if method.settings is not None]


def _union(choices: list[Any]) -> Any:
    """Return a union that is told apart by `name`; pydantic wants two members for that."""
    if len(choices) == 1:
        return choices[0]
    return Annotated[Union[tuple(choices)], Field(discriminator="name")]  # noqa: UP007


def _choice(name: str, settings: Any) -> Any:
    """Return the settings with a field `name` that can only be this one."""
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    return create_model(settings.__name__, __base__=settings, __doc__=settings.__doc__, **fields)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a recipe file."""
    made = recipe_class().model_json_schema()
    made["properties"]["extends"] = {
        "type": "string",
        "description": "what this recipe changes: a preset, or the path of a recipe as seen from this one",
    }
    made["required"] = []  # the flags give the rest
    return made


def resolve(file: str | Path | None, *layers: Values) -> Recipe:
    """Build a recipe from a file and from layers of values, later ones over earlier ones.

    Args:
        file: a YAML recipe, the name of a preset, or None.
        layers: nested mappings; a key with dots reaches into a block (`{"training.epochs": 2}`).

    Raises:
        ConfigError: an unknown key (with the nearest name), a wrong value, or a file that cannot be read.
    """
    return build(with_defaults(composed(file, *layers)))


def composed(file: str | Path | None, *layers: Values) -> dict[str, Any]:
    """Return the values of a recipe file with layers over it, before anything is checked or filled in."""
    return reduce(merge, map(nested, layers), read_layers(file) if file else {})


def build(values: Values) -> Recipe:
    """Validate a complete mapping."""
    try:
        return recipe_class().model_validate(values)
    except ValidationError as error:
        raise _explained(error) from None


def load(path: str | Path) -> Recipe:
    """Read the resolved recipe of a run."""
    return build(read(Path(path)))


def outline(file: str | Path) -> dict[str, Any]:
    """Return a preset or a recipe file resolved as far as it goes.

    Returns:
        "recipe": its values with every default that follows from them; "missing": the parts that it leaves to flags.

    Raises:
        ConfigError: as `resolve`, but for missing parts.
    """
    values = composed(file)
    missing = [name for name in ("model", "evidence") if name not in values]
    if "method" not in values and "evidence" in missing:
        missing += ["method", *(["tuner"] if "tuner" not in values else [])]
    kind = find_method(str(values["method"])).evidence if "method" in values else "examples"
    made = build(with_defaults(merge({"model": "MODEL", "evidence": {"kind": kind}}, values))).model_dump(mode="json")
    if "tuner" in missing:  # the learning rate is the tuner's
        made["training"]["learning_rate"] = (values.get("training") or {}).get("learning_rate")
    return {"recipe": {name: value for name, value in made.items() if name not in missing}, "missing": missing}


def _explained(error: ValidationError) -> ConfigError:
    """Turn pydantic's first complaint into got, wanted, to do."""
    first = error.errors(include_url=False)[0]
    where = [str(part) for part in first["loc"]]
    tagged = len(where) > 1 and (where[0] == "tuner" or (where[0] == "learner" and where[1] in methods()))
    tag = where.pop(1) if tagged else ""  # of the union
    key = ".".join(where)
    if first["type"] == "extra_forbidden":
        return ConfigError(f"there is no setting {key!r}", action=nearest(where[-1], _siblings(where[:-1], tag)))
    if first["type"] == "missing":
        return ConfigError(f"the recipe does not say {key!r}", action="add it, or give the flag of that name")
    return ConfigError(f"{key} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}")


def _siblings(where: list[str], tag: str) -> Iterable[str]:
    """Return the names of the settings in a block; `tag` is the method whose learner it belongs to, where it does."""
    blocks: dict[str, type[BaseModel]] = {"data": DataSettings, "training": TrainingSettings}
    blocks["evidence"] = EvidenceSettings
    if not where:
        return Recipe.model_fields
    if where[0] == "tuner":
        return {name for tuner in tuners().values() for name in tuner.settings.model_fields}
    if where[0] == "learner":
        settings = methods()[tag].settings if tag in methods() else None
        return settings.model_fields if settings else ()
    return blocks[where[0]].model_fields if where[0] in blocks else ()


def differences(old: Recipe, new: Recipe) -> list[str]:
    """Return the lines in which two recipes differ, for the error that refuses to resume another run."""
    lines = difflib.unified_diff(old.to_yaml().splitlines(), new.to_yaml().splitlines(), lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))]
