"""Bytes to text, and plain text to paragraphs.

Text is UTF-8, with or without a byte order mark, or UTF-16 with one. Other encodings cannot be told apart for sure,
so they are an error and not a guess.
"""

from __future__ import annotations

import codecs
import re

from budwood.data.documents.document import Layout
from budwood.data.problems import LocatedError, Origin

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_ITEM = re.compile(r"\s*(?:[-*•‣–]|\(?(?:\d{1,3}|[a-zA-Z])[.)])\s+\S")
WRAPPED = 45  # a line this long is taken to be broken by its width, not by its writer
HEADING_WORDS = 10


def decode(data: bytes, origin: Origin) -> str:
    """Return the text of a file, with line feeds as ends of lines.

    Raises:
        LocatedError: the bytes are no text, or text in another encoding.
    """
    encoding = "utf-16" if data.startswith(_UTF16) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if b"\0" in data[:4096]:
            raise binary(origin) from error
        raise LocatedError(
            f"the file is not UTF-8: byte 0x{data[error.start]:02x} at byte {error.start + 1}",
            wanted="text in UTF-8, or in UTF-16 with a byte order mark",
            action="convert it to UTF-8 (e.g. iconv -f latin1 -t utf-8 FILE > NEW)",
            origin=origin,
        ) from error
    if len(_CONTROLS.findall(text[:4096])) > len(text[:4096]) / 100:
        raise binary(origin)
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n"))


def binary(origin: Origin) -> LocatedError:
    """The error for a file that is not text, whatever its name says."""
    return LocatedError("the file is binary, not text", action="give the text that it stands for", origin=origin)


def read_plain(data: bytes, origin: Origin) -> Layout:
    """Read plain text. A short line alone, with an empty line around it and no full stop, is a heading."""
    layout = Layout()
    for block in blocks(decode(data, origin)):
        if is_heading(block):
            layout.heading(block, 1)
        else:
            layout.paragraph(block)
    return layout


def blocks(text: str) -> list[str]:
    """Return the paragraphs of a text, with the lines that their width had broken joined again."""
    return [unwrap(block) for block in re.split(r"\n[ \t]*\n", text) if block.strip()]


def unwrap(block: str) -> str:
    """Join the lines of a paragraph where one was broken by its width; a list keeps one line an item."""
    parts: list[str] = []
    previous = ""
    for line in block.split("\n"):
        text = line.strip()
        if parts and not _ITEM.match(line) and len(previous.strip()) >= WRAPPED:
            _join(parts, text)
        elif text:
            parts += ["\n", text] if parts else [text]
        previous = line
    return "".join(parts)


def _join(parts: list[str], text: str) -> None:
    """Go on with a line, in pieces: a paragraph may be a book. A word that was divided at its end is put together."""
    if re.search(r"[a-zß-ÿ]-$", parts[-1]) and re.match(r"[a-zß-ÿ]", text):
        parts[-1] = parts[-1][:-1]
        parts.append(text)
    elif text:
        parts += [" ", text]


def is_heading(block: str) -> bool:
    """Whether a paragraph looks like a heading: one short line that begins as a title does and does not end."""
    words = block.split()
    return (
        "\n" not in block
        and len(words) <= HEADING_WORDS
        and block[0].isalpha()
        and (block[0].isupper() or not block[0].islower())
        and block[-1].isalnum()
    )
