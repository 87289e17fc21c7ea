"""Files in, records out: JSON Lines, JSON, CSV, TSV and Parquet, chosen by suffix and read lazily; and what the
`datasets` library keeps (see `saved`).

A record is one object with its origin; what its fields mean is the affair of `rows`. Text is UTF-8, with or without
a byte order mark; blank lines are skipped. Everything that can be wrong with a file is a `DataError` that names file
and line and shows the right shape.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budwood.data import saved
from budwood.data.problems import EXAMPLE, LocatedError, Origin, described, or_raise, shorten
from budwood.errors import nearest

_LINES_WANTED = f"one JSON object on each line, such as {EXAMPLE}"
_TABLE_WANTED = "a first line with the names of the columns, such as prompt,completion"
_SIGNATURES = {
    codecs.BOM_UTF16_LE: ("text in UTF-16", "save the file as UTF-8"),
    codecs.BOM_UTF16_BE: ("text in UTF-16", "save the file as UTF-8"),
    b"\x1f\x8b": ("compressed with gzip", "unpack it first"),
    b"PK\x03\x04": ("a zip archive (or a spreadsheet)", "unpack it, or export the sheet as CSV"),
    b"PAR1": ("a Parquet file", "give it the suffix .parquet"),
}


@dataclass(frozen=True, slots=True)
class Record:
    """One object of a file, as it stands there."""

    values: dict[str, Any]
    origin: Origin


def read_records(path: str | Path) -> Iterator[Record]:
    """Yield the records of a file one by one.

    Args:
        path: a file whose suffix is one of `.jsonl .ndjson .json .csv .tsv .parquet`; a folder that `save_to_disk` of
            the `datasets` library wrote; or `owner/name[:split]`, a hub dataset in its local cache.

    Raises:
        DataError: the file is missing, empty, another folder, of an unknown suffix (at once), or a line of it cannot
            be read (when that line is reached).
    """
    return or_raise(scan_records(path))


def scan_records(path: str | Path) -> Iterator[Record | LocatedError]:
    """As `read_records`, but a bad line is yielded as its error, and reading goes on after it."""
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    require_readable(path)
    if not path.exists():
        return _guarded(_numbered(saved.cached_rows(path), path), path)
    if path.is_dir():
        if saved.is_saved(path):
            return _guarded(_numbered(saved.saved_rows(path), path), path)
        wanted = "a file of rows, or a folder that save_to_disk of the datasets library wrote"
        raise LocatedError("this is a folder", wanted=wanted, origin=Origin(str(path)))
    if reader is None:
        problem = f"files that end in {path.suffix!r} cannot be read" if path.suffix else "the file has no suffix"
        raise LocatedError(problem, wanted=nearest(path.suffix.lower(), _READERS), origin=Origin(str(path)))
    return _guarded(reader(path), path)


def require_readable(path: Path) -> None:
    """Refuse a path where nothing is, unless it reads as a hub dataset, which may be in a cache.

    Raises:
        LocatedError: there is nothing.
    """
    if not path.exists() and (path.suffix.lower() in _READERS or not saved.is_hub_id(path)):
        raise LocatedError("there is no such file", action="check the path", origin=Origin(str(path)))


def _numbered(rows: Iterable[dict[str, Any]], path: Path) -> Iterator[Record]:
    return (Record(values, Origin(str(path), number)) for number, values in enumerate(rows, start=1))


def _guarded(records: Iterable[Record | LocatedError], path: Path) -> Iterator[Record | LocatedError]:
    """Pass the records on; translate failures of the disk; refuse a file without any."""
    count = 0
    with _reading(path):
        for record in records:
            count += 1
            yield record
    if not count:
        raise LocatedError("the file holds no rows", wanted=f"rows such as {EXAMPLE}", origin=Origin(str(path)))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"the file cannot be read: {error.strerror or error}"
        raise LocatedError(problem, action="check its permissions and the disk", origin=Origin(str(path))) from error


def _json_lines(path: Path) -> Iterator[Record | LocatedError]:
    for origin, line in _text_lines(path):
        if isinstance(line, LocatedError):
            yield line
        elif line.strip():
            yield _json_line(line, origin)


def _json_line(line: str, origin: Origin) -> Record | LocatedError:
    try:
        return _record(json.loads(line), origin)
    except json.JSONDecodeError as error:
        problem = f"the line is not valid JSON: {error.msg} at column {error.colno}: {shorten(line.strip())}"
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, nesting without end
        problem = f"the line cannot be read as JSON: {error}"
    action = "give the file the suffix .json if it is one JSON list" if line.lstrip().startswith("[") else ""
    return LocatedError(problem, wanted=_LINES_WANTED, action=action, origin=origin)


def _record(value: Any, origin: Origin) -> Record | LocatedError:
    if isinstance(value, dict):
        return Record(value, origin)
    problem = f"a row is {described(value)}, not an object"
    action = "give the file the suffix .json if it is one JSON list" if isinstance(value, list) else ""
    return LocatedError(problem, wanted=f"an object such as {EXAMPLE}", action=action, origin=origin)


def _json(path: Path) -> Iterator[Record | LocatedError]:
    origin = Origin(str(path))
    text = "".join(line for _, line in _sound_lines(path))
    if not text.strip():
        return
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"
        action = "give the file the suffix .jsonl if it has one object on each line" if lines else ""
        problem = f"the file is not valid JSON: {error}"
        raise LocatedError(problem, wanted=f"a list such as [{EXAMPLE}]", action=action, origin=origin) from error
    for number, row in enumerate(_list_in(value, origin), start=1):
        yield _record(row, Origin(origin.file, number))


def _list_in(value: Any, origin: Origin) -> list[Any]:
    """Return the value if it is a list, or the one list that an object holds."""
    lists = {"": value} if isinstance(value, list) else {}
    if isinstance(value, dict):
        lists = {name: part for name, part in value.items() if isinstance(part, list)}
    if len(lists) == 1:
        return next(iter(lists.values()))
    found = f"an object with {len(lists)} lists" if isinstance(value, dict) else described(value)
    wanted = f"a list such as [{EXAMPLE}], or an object with one list"
    raise LocatedError(f"the file holds {found}", wanted=wanted, origin=origin)


def _delimited(path: Path, delimiter: str) -> Iterator[Record | LocatedError]:
    reader = csv.reader((line for _, line in _sound_lines(path)), delimiter=delimiter, strict=True)
    names: list[str] = []
    try:
        while True:
            origin = Origin(str(path), reader.line_num + 1)
            cells = next(reader, None)
            if cells is None:
                return
            if not any(cell.strip() for cell in cells):
                continue
            if names:
                yield _cells(names, cells, origin)
            else:
                names = _header(cells, origin)
    except csv.Error as error:
        problem = f"the row cannot be read: {error}"
        action = "check the quotes; long or odd text is safer in a .jsonl file"
        raise LocatedError(problem, action=action, origin=origin) from error


def _header(cells: list[str], origin: Origin) -> list[str]:
    names = [cell.strip() for cell in cells]
    if not all(names) or len(set(names)) < len(names):
        problem = f"the header has an empty or a repeated name: {shorten(cells)}"
        raise LocatedError(problem, wanted=_TABLE_WANTED, origin=origin)
    return names


def _cells(names: list[str], cells: list[str], origin: Origin) -> Record | LocatedError:
    if len(cells) == len(names):
        return Record(dict(zip(names, cells)), origin)
    problem = f"the row has {len(cells)} cells, the header {len(names)} ({shorten(names)})"
    action = 'put cells that hold the separator in double quotes: "like, this"'
    return LocatedError(problem, wanted="as many cells as names", action=action, origin=origin)


def _parquet(path: Path) -> Iterator[Record | LocatedError]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    if not path.stat().st_size:
        return
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    number += 1
                    yield Record(values, Origin(str(path), number))
    except pyarrow.ArrowException as error:
        first = str(error).splitlines()[0]
        raise LocatedError(f"the file is not sound Parquet: {first}", origin=Origin(str(path), number)) from error


def _sound_lines(path: Path) -> Iterator[tuple[Origin, str]]:
    """As `_text_lines`; the first line that is not UTF-8 is raised."""
    for origin, line in _text_lines(path):
        if isinstance(line, LocatedError):
            raise line
        yield origin, line


def _text_lines(path: Path) -> Iterator[tuple[Origin, str | LocatedError]]:
    """Yield the lines with their ends; only line feeds divide, so that quoted breaks and U+2028 stay."""
    with path.open("rb") as file:
        _refuse_binary(file.read(4096), path)
        file.seek(0)
        for number, line in enumerate(file, start=1):
            origin = Origin(str(path), number)
            try:
                yield origin, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                problem = f"the line is not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1}"
                action = "save the file as UTF-8 (from Windows or old files: iconv -f WINDOWS-1252 -t UTF-8)"
                yield origin, LocatedError(problem, wanted="text in UTF-8", action=action, origin=origin)


def _refuse_binary(head: bytes, path: Path) -> None:
    for signature, (what, action) in _SIGNATURES.items():
        if head.startswith(signature):
            raise LocatedError(f"the file is {what}", action=action, origin=Origin(str(path)))
    if b"\0" in head:
        raise LocatedError("the file is binary, not text", wanted=_LINES_WANTED, origin=Origin(str(path)))


_READERS: dict[str, Callable[[Path], Iterator[Record | LocatedError]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": lambda path: _delimited(path, ","),
    ".tsv": lambda path: _delimited(path, "\t"),
    ".parquet": _parquet,
}
