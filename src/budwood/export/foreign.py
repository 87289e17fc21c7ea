"""Adapter folders that were not made here: read as data, checked, and loaded so that nothing is dropped in silence.

PEFT loads an adapter whose keys match nothing with a warning at most, and the model then answers like its base. Here
that is an error which lists the keys. Nothing in a folder is executed: no pickle is opened, and a configuration that
names code to import is refused.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from peft import PeftModel, PeftType
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING
from safetensors import SafetensorError, safe_open
from torch import nn

from budwood.errors import AdapterError, nearest
from budwood.storage import read_json
from budwood.tuning.attach import quiet_peft

PREFIX = "base_model.model."  # what PEFT puts before the name of a module of the base
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PICKLES = ("adapter_model.bin", "adapter_model.pt")


@dataclass(frozen=True)
class Problem:
    """Something about a folder that its user must know.

    Args:
        name: which problem, for programs.
        text: what was found and what to do, for people.
        blocks: what the problem makes impossible.
    """

    name: str
    text: str
    blocks: Literal["load", "export", "nothing"]


@dataclass(frozen=True)
class AdapterInfo:
    """What a folder says, without a model loaded and without anything executed.

    Args:
        peft_type: `LORA`, `PROMPT_TUNING`, …
        base_id: the base that the folder names, or empty.
        revision: its commit, or None.
        config: the content of adapter_config.json.
        keys: the name and shape of every tensor.
        bytes: size of the weights file.
        problems: what is wrong or noteworthy.
    """

    folder: Path
    peft_type: str
    base_id: str
    revision: str | None
    config: Mapping[str, Any]
    keys: Mapping[str, tuple[int, ...]]
    bytes: int
    problems: tuple[Problem, ...]

    def require(self, purpose: Literal["load", "export"]) -> None:
        """Raise the first problem that stands in the way of `purpose` as an `AdapterError`."""
        for problem in self.problems:
            if problem.blocks in ("load", purpose):
                raise AdapterError(
                    f"{self.folder}: {problem.text}", wanted=f"an adapter that can be used to {purpose}"
                )


def inspect_adapter(folder: str | Path) -> AdapterInfo:
    """Read a PEFT folder as data.

    Raises:
        AdapterError: there is no configuration or no safetensors file, or one of them cannot be read.
    """
    folder = Path(folder)
    config = _read_config(folder)
    keys = _read_keys(folder)
    return AdapterInfo(
        folder=folder,
        peft_type=str(config["peft_type"]),
        base_id=str(config.get("base_model_name_or_path") or ""),
        revision=config.get("revision"),
        config=config,
        keys=keys,
        bytes=(folder / WEIGHTS).stat().st_size,
        problems=tuple(_problems(config, keys)),
    )


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise AdapterError(f"{folder} is no folder", wanted=f"a folder with {CONFIG} and {WEIGHTS}")
    try:
        config = read_json(folder / CONFIG)
    except OSError as error:
        raise AdapterError(f"cannot read {folder / CONFIG}: {error.strerror}", wanted="a PEFT folder") from error
    except ValueError as error:
        raise AdapterError(f"{folder / CONFIG} is not JSON: {error}", action="fetch the adapter again") from error
    if not isinstance(config, dict) or not config.get("peft_type"):
        raise AdapterError(f"{folder / CONFIG} names no peft_type", wanted="the configuration of a PEFT adapter")
    return config


def _read_keys(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return names and shapes from the header of the weights file."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise _no_weights(folder)
    try:
        with safe_open(path, framework="pt") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}
    except (SafetensorError, OSError) as error:
        raise AdapterError(
            f"{path} cannot be read: {error}", action="the file is cut or broken: fetch it again"
        ) from error


def _no_weights(folder: Path) -> AdapterError:
    pickle = next((name for name in PICKLES if (folder / name).is_file()), None)
    if pickle is None:
        return AdapterError(f"{folder} has no {WEIGHTS}", wanted="a complete PEFT folder")
    return AdapterError(
        f"{folder} holds its weights as a pickle ({pickle}), which can run code when it is opened",
        wanted=WEIGHTS,
        action='if you trust its maker, convert it: python -c "import torch, safetensors.torch as s; '
        f"s.save_file(torch.load('{pickle}', weights_only=True), '{WEIGHTS}')\"",
    )


def _problems(config: Mapping[str, Any], keys: Mapping[str, Any]) -> list[Problem]:
    """List what can be seen without the base."""
    found = []
    kind = str(config["peft_type"])
    known = {member.value for member in PEFT_TYPE_TO_CONFIG_MAPPING}
    if kind not in known:
        found.append(Problem("unknown_type", f"unknown peft_type {kind!r}. {nearest(kind, known)}", "load"))
    if config.get("megatron_config"):
        text = f"megatron_config makes PEFT import {config.get('megatron_core')!r}; code is not loaded from a folder"
        found.append(Problem("names_code", text, "load"))
    if config.get("auto_mapping"):
        text = f"auto_mapping names {config['auto_mapping']}; it is read as data and not imported"
        found.append(Problem("auto_mapping", text, "nothing"))
    if kept := config.get("modules_to_save"):
        text = f"modules_to_save holds whole modules ({kept}); no LoRA has those: use `budwood export --to merged`"
        found.append(Problem("modules_to_save", text, "export"))
    if not keys:
        found.append(Problem("empty", f"{WEIGHTS} holds no tensor", "load"))
    without = [key for key in keys if not key.startswith("base_model.")]
    if without and not _is_prompt(config):
        text = f"{len(without)} of {len(keys)} keys lack the prefix {PREFIX!r}, such as {without[0]!r}; rename them"
        found.append(Problem("wrong_prefix", text, "load"))
    return found


def _is_prompt(config: Mapping[str, Any]) -> bool:
    return "num_virtual_tokens" in config


def check_against_base(info: AdapterInfo, model_module_names: Collection[str]) -> list[Problem]:
    """Return what does not fit between the tensors of a folder and the modules of a base.

    Args:
        info: what `inspect_adapter` returned.
        model_module_names: names from `named_modules()` of the base, without any adapter.
    """
    adapted = _adapted_modules(info)
    names = set(model_module_names)
    absent = sorted(adapted - names)
    if not absent:
        return []
    close = difflib.get_close_matches(absent[0], names, n=1, cutoff=0.0)
    hint = f"{absent[0]!r} is not in the base; the nearest there is {close[0] if close else 'none'!r}"
    if len(absent) == len(adapted):
        return [Problem("no_match", f"none of the {len(adapted)} adapted modules is in the base: {hint}", "load")]
    return [Problem("partial_match", f"{len(absent)} of {len(adapted)} adapted modules are missing: {hint}", "load")]


def _adapted_modules(info: AdapterInfo) -> set[str]:
    """Return the modules that the keys name; keys of parameters shared by all modules name none."""
    marker = PEFT_TYPE_TO_PREFIX_MAPPING.get(PeftType.__members__.get(info.peft_type))
    if not marker:
        return set()
    before = (key.rpartition(f".{marker}")[0] for key in info.keys)
    return {name.removeprefix(PREFIX) for name in before if name.startswith(PREFIX)}


def load_foreign(model: nn.Module, folder: str | Path, adapter: str = "default") -> PeftModel:
    """Load an adapter folder onto a base, with every key of the file used and every parameter of the adapter filled.

    Args:
        model: the base. PEFT puts its layers into it; after an error, load the base again.
        folder: the adapter.
        adapter: the name that the adapter gets.

    Raises:
        AdapterError: the folder cannot be read, does not fit the base, or has keys too many or too few.
    """
    info = inspect_adapter(folder)
    info.require("load")
    for problem in check_against_base(info, [name for name, _ in model.named_modules()]):
        raise AdapterError(f"{folder}: {problem.text}", action="choose the base it was made for, with --base")
    try:
        with quiet_peft():
            warnings.filterwarnings("ignore", message="Found missing adapter keys")  # an error below
            loaded = PeftModel.from_pretrained(model, str(folder), adapter_name=adapter)
            # `from_pretrained` keeps the result of loading to itself; loading once more returns it.
            result = loaded.load_adapter(str(folder), adapter)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise AdapterError(f"PEFT cannot load {folder}: {error}", wanted="an adapter made for this base") from error
    # A soft prompt is loaded on its own, strictly, and PEFT then reports its one key as left over.
    unexpected = [] if loaded.peft_config[adapter].is_prompt_learning else result.unexpected_keys
    _refuse_leftovers(folder, result.missing_keys, unexpected)
    return loaded


def _refuse_leftovers(folder: str | Path, missing: list[str], unexpected: list[str]) -> None:
    if missing or unexpected:
        raise AdapterError(
            f"{folder} does not fit its own configuration or this base: "
            f"{len(missing)} parameters have no tensor {missing[:3]}, {len(unexpected)} tensors have no place "
            f"{unexpected[:3]}",
            wanted="a tensor for every parameter of the adapter and no other",
            action="fetch or export the adapter again; check that the base is the one it was made for",
        )
