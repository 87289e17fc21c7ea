"""The check of a portable LoRA folder that loads no model: the file against its own configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from budwood.export.checks import Check, listed
from budwood.export.foreign import PREFIX

RANK_AXIS = {"lora_A": 0, "lora_B": 1}


def static_checks(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[Check]:
    """Check the file of a portable LoRA against its configuration, without loading a model.

    Args:
        config: the content of adapter_config.json.
        shapes: the name and shape of every tensor in adapter_model.safetensors.
    """
    modules, strange = _pairs(shapes)
    unpaired = [name for name, factors in modules.items() if factors.keys() != {"lora_A", "lora_B"}]
    ranks = {
        name: {shape[RANK_AXIS[factor]] for factor, shape in factors.items()} for name, factors in modules.items()
    }
    other_rank = [name for name, found in ranks.items() if found != {config.get("r")}]
    return [
        listed("only lora_A and lora_B in the file", strange),
        listed("every module has both factors", unpaired),
        listed("one rank for all modules", other_rank),
        listed("target_modules cover the file", _uncovered(config.get("target_modules"), modules)),
        listed("nothing is left to interpret", _left_to_interpret(config)),
    ]


def _ranks(factors: Mapping[str, tuple[int, ...]]) -> set[int]:
    return {shape[RANK_AXIS[factor]] for factor, shape in factors.items()}


def _uncovered(targets: object, modules: Collection[str]) -> list[str]:
    """Return the modules that no target matches and the targets that match no module."""
    if not isinstance(targets, list):
        return [f"target_modules is {targets!r}, not a list"]
    unmatched = [name for name in modules if not any(_ends(name, target) for target in targets)]
    return unmatched + [target for target in targets if not any(_ends(name, target) for name in modules)]


def _ends(name: str, target: str) -> bool:
    return f".{name}".endswith(f".{target}")


def _left_to_interpret(config: Mapping[str, Any]) -> list[str]:
    """Return the settings on which consumers disagree, or that some of them refuse."""
    settings = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias")
    found = [f"{key}={config[key]!r}" for key in settings if config.get(key)]
    if config.get("bias", "none") != "none":
        found.append(f"bias={config['bias']!r}")
    if config.get("lora_alpha") != config.get("r"):
        found.append(f"lora_alpha {config.get('lora_alpha')} is not r {config.get('r')}")
    return found


def _pairs(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, dict[str, tuple[int, ...]]], list[str]]:
    """Return the factors by module, and the keys that are no factor of a module."""
    modules: dict[str, dict[str, tuple[int, ...]]] = {}
    strange = []
    for key, shape in shapes.items():
        name, _, factor = key.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        whole = key == f"{PREFIX}{name}.{factor}.weight"
        if whole and factor in RANK_AXIS and len(shape) == 2:
            modules.setdefault(name, {})[factor] = shape
        else:
            strange.append(key)
    return modules, sorted(strange)
