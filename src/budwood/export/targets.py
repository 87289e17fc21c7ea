"""The shortest description of the adapted modules that PEFT reads back as exactly those modules.

Servers read the names of the tensors; PEFT reads `target_modules` (and `layers_to_transform`) of the configuration and
expects a tensor for every module that they match. So the description is searched, shortest form first, and each
candidate is tried with PEFT's own matching.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists

from budwood.errors import NotSupportedError


@dataclass(frozen=True)
class Targets:
    """`target_modules` and `layers_to_transform` of a LoRA configuration."""

    modules: list[str]
    layers: list[int] | None = None

    def match(self, names: Collection[str]) -> set[str]:
        """Return the names that PEFT would adapt."""
        config = LoraConfig(target_modules=self.modules, layers_to_transform=self.layers)
        return {name for name in names if check_target_module_exists(config, name)}


def describe(adapted: Collection[str], every: Collection[str]) -> Targets:
    """Return the shortest `Targets` that match exactly `adapted` among `every` module name of the base.

    Tried in this order: last name components (`q_proj`), the same in some layers only, two last components
    (`attn.c_proj`), and so on; the full names come last. SGLang and others read the last component of each entry, so
    every form tells them the right kinds of layer.

    Raises:
        NotSupportedError: even the full names match more, because one of them ends another module's name.
    """
    wanted = set(adapted)
    for candidate in _candidates(sorted(wanted)):
        if candidate.match(every) == wanted:
            return candidate
    raise NotSupportedError(
        "PEFT's name matching cannot tell the adapted modules from others whose names end in the same way",
        wanted=f"{len(wanted)} modules matched exactly, such as {min(wanted)}",
        action="adapt the others too, or write the whole model with `budwood export --to merged`",
    )


def _candidates(adapted: list[str]) -> Iterator[Targets]:
    layers = sorted({int(part) for name in adapted for part in name.split(".") if part.isdigit()})
    for depth in range(1, max(name.count(".") for name in adapted) + 1):
        suffixes = sorted({".".join(name.split(".")[-depth:]) for name in adapted})
        if any(part.isdigit() for suffix in suffixes for part in suffix.split(".")):
            break  # a suffix with a layer number in it says no more than the full name
        yield Targets(suffixes)
        yield Targets(suffixes, layers)
    yield Targets(adapted)
