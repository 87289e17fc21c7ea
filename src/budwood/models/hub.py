"""A repository of the Hugging Face hub as a local folder: from the cache if it is there, else from the network."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from budwood.models.borders import hub_errors
from budwood.models.files import is_whole
from budwood.models.reference import ModelReference

# Only what transformers reads, and no pickles: weights are safetensors, the rest is text.
WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py"]
# Patterns match over folders too; what lies in subfolders belongs to other runtimes, and Mistral's repositories hold
# their weights twice.
UNWANTED = ["*/*", "consolidated*"]


class Snapshot(NamedTuple):
    """A downloaded repository.

    Args:
        folder: where its files lie.
        revision: the commit.
        note: what the user should know about where it came from, or "".
    """

    folder: Path
    revision: str
    note: str


def snapshot(reference: ModelReference) -> Snapshot:
    """Return the files of a hub repository; the network is used only if the cache has not all of them.

    Raises:
        ModelError: it does not exist, is not allowed, or cannot be reached; says the way out.
    """
    with hub_errors(reference):
        cached = _cached(reference)
        folder = cached or _download(reference, local_only=False)
    if cached is None or folder.name == reference.revision:  # fetched now, or a commit, which never changes
        return Snapshot(folder, folder.name, "")
    named = reference.revision or "the default branch"
    note = f"{named} of {reference.location} as it was cached ({folder.name[:12]}); not compared with the hub"
    return Snapshot(folder, folder.name, note)


def _cached(reference: ModelReference) -> Path | None:
    """The folder in the hub's cache if it holds a whole model."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = _download(reference, local_only=True)
    except LocalEntryNotFoundError:
        return None
    return folder if is_whole(folder) else None  # an earlier program may have fetched the tokenizer only


def _download(reference: ModelReference, *, local_only: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            reference.location,
            revision=reference.revision,
            allow_patterns=WANTED,
            ignore_patterns=UNWANTED,
            local_files_only=local_only,
        )
    )
