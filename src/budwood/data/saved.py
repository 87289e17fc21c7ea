"""Rows that the `datasets` library keeps: a folder that `save_to_disk` wrote, or a hub dataset in the local cache.

Nothing is fetched from the network. This is the only file that imports `datasets`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from budwood.data.problems import LocatedError, Origin
from budwood.errors import nearest

_HUB_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+)(:(?P<split>\w+))?")
_SET, _SETS = "state.json", "dataset_dict.json"


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder, of a dataset or of several splits."""
    return (folder / _SET).is_file() or (folder / _SETS).is_file()


def is_hub_id(path: Path) -> bool:
    """Whether the text of a path reads as `owner/name` or `owner/name:split`."""
    return _HUB_ID.fullmatch(path.as_posix()) is not None


def saved_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a saved dataset; of several splits, those of `train`, or of the only one.

    Raises:
        LocatedError: there are several splits and none is called train, or the folder is damaged.
    """
    import datasets

    origin = Origin(str(folder))
    try:
        found = datasets.load_from_disk(str(folder))
        if isinstance(found, datasets.DatasetDict):
            found = found[_split(list(found), None, f"name one: {folder}/SPLIT", origin)]
        yield from found
    # pyarrow's and json's errors are ValueErrors; a dataset saved without rows is an IndexError of the library.
    except (ValueError, LookupError) as error:
        raise LocatedError(f"the dataset is empty or damaged: {_first_line(error)}", origin=origin) from error


def cached_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a hub dataset from the cache of the `datasets` library: `owner/name`, or `owner/name:split`.

    Raises:
        LocatedError: it is not in the cache, has several configurations there, or not that split.
    """
    from datasets.packaged_modules.cache.cache import Cache

    match = _HUB_ID.fullmatch(path.as_posix())
    assert match is not None
    name, wanted, origin = match["name"], match["split"], Origin(path.as_posix())
    try:
        builder = Cache(dataset_name=name.split("/")[-1], repo_id=name, version="auto", hash="auto")
    except ValueError as error:
        raise LocatedError(
            f"there is no such file, and datasets says: {_first_line(error)}",
            wanted="a file of rows, a folder of save_to_disk, or a hub dataset in the local cache",
            action=f"check the path; or fetch it once: python -c 'import datasets; datasets.load_dataset(\"{name}\")'",
            origin=origin,
        ) from error
    splits = list(builder.info.splits or ())
    yield from builder.as_dataset(split=_split(splits, wanted, f"name one: {name}:SPLIT", origin))


def _split(splits: list[str], wanted: str | None, action: str, origin: Origin) -> str:
    if wanted is not None and wanted not in splits:
        raise LocatedError(f"there is no split {wanted!r}", wanted=nearest(wanted, splits), origin=origin)
    if wanted is None and "train" not in splits and len(splits) != 1:
        problem = f"there are {len(splits)} splits and none is called train: {', '.join(splits)}"
        raise LocatedError(problem, action=action, origin=origin)
    return wanted or ("train" if "train" in splits else splits[0])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
