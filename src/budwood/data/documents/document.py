"""What readers make of a file: plain text in paragraphs, with its headings, and the set of all of them."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from budwood.data.offsets import Span
from budwood.data.problems import Origin
from budwood.data.report import Occurrences

BREAK = "\n\n"  # between paragraphs


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: its characters in the text, and its level, 1 for the highest."""

    span: Span
    level: int


@dataclass(frozen=True, slots=True)
class Document:
    """One text.

    Attributes:
        text: paragraphs with an empty line between them; headings are paragraphs, too. All character offsets of
            sentences, windows and blanks count in it.
        origin: the file, and the line or row where the file holds several texts.
        title: what the text is called; "" where nothing says.
        headings: in the order of the text.
    """

    text: str
    origin: Origin
    title: str = ""
    headings: tuple[Heading, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the words: equal for texts that differ in white space only."""
        return hashlib.sha256(" ".join(self.text.split()).encode()).hexdigest()

    def heading_at(self, position: int) -> str:
        """Return the text of the nearest heading that ends before a character, or ""."""
        above = bisect_right(self.headings, position, key=lambda one: one.span[1])
        return self.text[slice(*self.headings[above - 1].span)] if above else ""


@dataclass
class DocumentReport:
    """What was read and what was not.

    Attributes:
        documents: texts that are used.
        characters: how many those have in all.
        skipped: texts or files left out, by reason.
        remarks: texts that are used but look wrong, by reason.
    """

    documents: int = 0
    characters: int = 0
    skipped: dict[str, Occurrences] = field(default_factory=dict)
    remarks: dict[str, Occurrences] = field(default_factory=dict)

    def skip(self, reason: str, origin: Origin) -> None:
        self.skipped.setdefault(reason, Occurrences()).add(origin)

    def remark(self, reason: str, origin: Origin) -> None:
        self.remarks.setdefault(reason, Occurrences()).add(origin)

    def to_dict(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        return {
            "documents": self.documents,
            "characters": self.characters,
            "skipped": {reason: where.to_dict() for reason, where in self.skipped.items()},
            "remarks": {reason: where.to_dict() for reason, where in self.remarks.items()},
        }


@dataclass(frozen=True)
class DocumentSet:
    """Documents in the order of their files, and the report on all that was read."""

    documents: tuple[Document, ...]
    report: DocumentReport

    @property
    def digest(self) -> str:
        """SHA-256 over the documents in order: it names the set in caches and in a prior's data hash."""
        return hashlib.sha256("".join(one.digest for one in self.documents).encode()).hexdigest()


@dataclass
class Layout:
    """Paragraphs and headings as a reader meets them, put together into a text."""

    title: str = ""
    _parts: list[str] = field(default_factory=list)
    _headings: list[tuple[int, int]] = field(default_factory=list)  # index of the part, level

    def paragraph(self, text: str) -> None:
        """Add a paragraph; white space at its ends is dropped, an empty one ignored."""
        if text.strip():
            self._parts.append(text.strip())

    def heading(self, text: str, level: int) -> None:
        """Add a heading; the first of the highest level becomes the title where there is none."""
        words = " ".join(text.split())
        if words:
            self._headings.append((len(self._parts), level))
            self._parts.append(words)

    def document(self, origin: Origin) -> Document:
        """Return the text that was put together."""
        starts, position = [], 0
        for part in self._parts:
            starts.append(position)
            position += len(part) + len(BREAK)
        headings = tuple(Heading((starts[i], starts[i] + len(self._parts[i])), level) for i, level in self._headings)
        top = min((level for _, level in self._headings), default=0)
        first = next((self._parts[i] for i, level in self._headings if level == top), "")
        return Document(BREAK.join(self._parts), origin, " ".join(self.title.split()) or first, headings)
