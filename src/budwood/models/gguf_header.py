"""The head of a GGUF file: is the file whole, and what does it hold?

The `gguf` package can read this too, but it maps every word of the vocabulary to an array of its own, which takes
seconds; here arrays are stepped over. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from budwood.errors import ModelError

Scalar = int | float | bool | str

# Type number of a value -> its `struct` letter. 8 is a string and 9 an array.
_LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufHeader:
    """What the head of a GGUF file says.

    Args:
        values: its metadata without the arrays.
        weights: how many numbers its tensors hold in total.
        size: how many bytes the file has at least, if it is whole.
    """

    values: dict[str, Scalar]
    weights: int
    size: int

    @property
    def architecture(self) -> str:
        """The architecture's name as llama.cpp spells it."""
        return str(self.values["general.architecture"])


def read_header(path: Path) -> GgufHeader:
    """Read the head of a GGUF file and compare the file's size with what its tensors need.

    Raises:
        ModelError: not a GGUF file, a version that is not read, or a file that is cut off or damaged.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        if size < 24 or file.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file", wanted="a file that starts with the letters GGUF")
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = _parse(_Cursor(data))
        except (struct.error, ArithmeticError, ValueError, KeyError) as error:
            raise ModelError(
                f"the head of {path} cannot be read ({error})",
                wanted="a whole GGUF file, version 2 or 3, little-endian",
                action="the download may be incomplete: fetch the file again",
            ) from error
    if size < header.size:
        raise ModelError(
            f"{path} is cut off: it has {size} bytes, its tensors need {header.size}",
            action="the download is incomplete: fetch the file again",
        )
    return header


class _Cursor:
    """Reads little-endian values from a buffer, one after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def take(self, letters: str) -> tuple[Scalar, ...]:
        values = struct.unpack_from("<" + letters, self.data, self.at)
        self.at += struct.calcsize("<" + letters)
        return values

    def number(self, letter: str) -> int:
        return int(self.take(letter)[0])

    def string(self) -> str:
        start = self.skip_string()
        return self.data[start : self.at].decode("utf-8")

    def skip_string(self) -> int:
        """Step over a string; return where its text starts."""
        length = self.number("Q")
        self.at += length
        return self.at - length

    def skip_array(self) -> None:
        kind, count = self.number("I"), self.number("Q")
        if kind != _STRING:
            self.at += count * struct.calcsize("<" + _LETTERS[kind])
            return
        for _ in range(count):
            self.skip_string()


def _parse(cursor: _Cursor) -> GgufHeader:
    cursor.at = 4
    version, tensors, entries = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
    if version not in (2, 3):
        raise ValueError(f"version {version}")
    values: dict[str, Scalar] = {}
    for _ in range(entries):
        name, kind = cursor.string(), cursor.number("I")
        if kind == _ARRAY:
            cursor.skip_array()
        else:
            values[name] = cursor.string() if kind == _STRING else cursor.take(_LETTERS[kind])[0]
    if "general.architecture" not in values:
        raise ValueError("no general.architecture")
    weights, end = _tensors(cursor, tensors)
    alignment = int(values.get("general.alignment", 32))
    return GgufHeader(values, weights, math.ceil(cursor.at / alignment) * alignment + end)


def _tensors(cursor: _Cursor, count: int) -> tuple[int, int]:
    """Read the table of tensors; return how many weights there are and where the last tensor's data ends."""
    weights = end = 0
    for _ in range(count):
        cursor.skip_string()
        shape = cursor.take(f"{cursor.number('I')}Q")
        kind, offset = GGMLQuantizationType(cursor.number("I")), cursor.number("Q")
        elements = math.prod(int(length) for length in shape)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        weights += elements
        end = max(end, offset + elements // block * block_bytes)
    return weights, end
