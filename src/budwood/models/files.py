"""What a model folder must hold: a configuration and whole safetensors weights. Pickles are never read."""

from __future__ import annotations

from pathlib import Path

from budwood.errors import ModelError
from budwood.storage import read_json

CONFIG, WEIGHTS, INDEX, ADAPTER = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "adapter_config.json",
)
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def check_folder(folder: Path, what: str) -> list[Path]:
    """Return the weight files of a base model's folder.

    Args:
        folder: the folder to look at.
        what: how the error calls it.

    Raises:
        ModelError: it is an adapter, or lacks a configuration or weights, or has weights only as pickles.
    """
    if (folder / ADAPTER).exists():
        raise _adapter_error(folder, what)
    if not (folder / CONFIG).exists():
        found = sorted(path.name for path in folder.glob("*.gguf"))
        raise ModelError(
            f"{what} is not a model folder: it has no {CONFIG}",
            wanted=f"a folder with {CONFIG} and {WEIGHTS}",
            action=f"name the file itself: {folder / found[0]}" if found else "check the path",
        )
    files = weight_files(folder, what)
    if files:
        return files
    if any(path for pattern in _PICKLES for path in folder.glob(pattern)):
        raise ModelError(
            f"the weights of {what} are pickles, which can run code when they are read",
            wanted=f"{WEIGHTS}, or shards of it",
            action="convert them where you trust them: load the model in transformers and `save_pretrained` it",
        )
    raise ModelError(
        f"{what} has no safetensors weights",
        wanted=f"{WEIGHTS}, or {INDEX} and its shards, in {folder}",
        action="complete the copy or the download, or choose a model that is published as safetensors",
    )


def weight_files(folder: Path, what: str) -> list[Path]:
    """Return the files that transformers reads the weights from, in name order; none if there are no safetensors.

    Raises:
        ModelError: shards are missing, or their index cannot be read.
    """
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if not (folder / INDEX).exists():
        return []
    try:
        names = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{folder / INDEX} cannot be read: {error}", action="fetch the file again") from error
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise ModelError(
            f"{what} is incomplete: {len(missing)} of {len(names)} weight files are missing, first {missing[0]}",
            action="complete the copy or the download",
        )
    return [folder / name for name in names]


def is_whole(folder: Path) -> bool:
    """Whether the folder has a configuration and all its weight files."""
    try:
        return (folder / CONFIG).exists() and bool(weight_files(folder, str(folder)))
    except ModelError:
        return False


def _adapter_error(folder: Path, what: str) -> ModelError:
    if (folder / CONFIG).exists():
        return ModelError(
            f"{what} holds a base and an adapter at once",
            wanted="a base alone: transformers would put the adapter onto it without a word",
            action=f"move {ADAPTER} and the adapter's weights to a folder of their own",
        )
    try:
        base = read_json(folder / ADAPTER).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    return ModelError(
        f"{what} is a PEFT adapter, not a base model",
        wanted="the base it was made on" + (f": {base}" if base else ""),
        action="give the base here, and the adapter to eval, generate, export or verify",
    )
