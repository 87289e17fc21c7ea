"""Paths in, documents out: files by suffix, folders with all that is in them, and a word on everything left out.

What cannot be read is an error where the user named the file, and is skipped and reported where it was found in a
folder. A reader that is not installed is always an error: a folder of PDFs must not shrink in silence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from budwood.data.documents.document import Document, DocumentReport, DocumentSet, Layout
from budwood.data.documents.html import read_html
from budwood.data.documents.markdown import read_markdown
from budwood.data.documents.office import read_docx, read_pdf
from budwood.data.documents.plain import read_plain
from budwood.data.documents.records import RECORD_SUFFIXES, scan_texts
from budwood.data.examples import Paths, as_paths
from budwood.data.problems import LocatedError, Origin
from budwood.errors import DataError

MAX_BYTES = 32 * 2**20  # a book is 1 MiB; what is larger is mostly a dump
FEWEST_WORDS = 5

_READERS: dict[str, Callable[[bytes, Origin], Layout]] = {
    ".txt": read_plain,
    ".text": read_plain,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": read_html,
    ".htm": read_html,
    ".xhtml": read_html,
    ".pdf": read_pdf,
    ".docx": read_docx,
}
SUFFIXES = (*_READERS, *RECORD_SUFFIXES)
_MOJIBAKE = re.compile(r"[ÃÂâ][\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]")


def read_documents(paths: Paths, *, max_bytes: int = MAX_BYTES) -> DocumentSet:
    """Read documents.

    Args:
        paths: files and folders. Folders are read with all that is below them, sorted by name; names that begin with
            a dot are passed over.
        max_bytes: the largest file.

    Raises:
        DataError: a named file is missing, empty, binary, damaged, too large, of an unknown kind or not UTF-8; or no
            text is left.
        NotSupportedError: the reader of a file is not installed.
    """
    documents: dict[str, Document] = {}
    report = DocumentReport()
    for path in as_paths(paths):
        for found in _below(path, max_bytes) if path.is_dir() else _texts(path, max_bytes):
            if isinstance(found, Document):
                _add(found, documents, report)
            elif path.is_dir() and found.origin is not None:
                report.skip("; ".join(part for part in (found.problem, found.action) if part), found.origin)
            else:
                raise found
    if not documents:
        raise _none_left(report)
    return DocumentSet(tuple(documents.values()), report)


def _add(document: Document, documents: dict[str, Document], report: DocumentReport) -> None:
    digest = document.digest
    if digest in documents:
        report.skip(f"the same text as {documents[digest].origin}", document.origin)
        return
    documents[digest] = document
    report.documents += 1
    report.characters += len(document.text)
    for remark in suspicions(document.text):
        report.remark(remark, document.origin)


def _below(folder: Path, max_bytes: int) -> Iterator[Document | LocatedError]:
    """Yield the texts of all files below a folder, or why there are none."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield from _texts(Path(place, name), max_bytes)


def _texts(path: Path, max_bytes: int) -> Iterator[Document | LocatedError]:
    """Yield the texts of one file; what is wrong with it is yielded as its error."""
    origin = Origin(str(path))
    try:
        if not path.exists():
            yield LocatedError("there is no such file", action="check the path", origin=origin)
        elif path.suffix.lower() not in SUFFIXES:
            yield _unknown(path.suffix.lower(), origin)
        elif path.stat().st_size > max_bytes:
            yield LocatedError(
                f"the file has more than {max_bytes / 2**20:.0f} MiB",
                action="divide it, or take out what teaches nothing",
                origin=origin,
            )
        elif path.suffix.lower() in RECORD_SUFFIXES:
            yield from scan_texts(path)
        else:
            document = _READERS[path.suffix.lower()](path.read_bytes(), origin).document(origin)
            empty = LocatedError("the document is empty", action="give one with text", origin=origin)
            yield document if document.text else empty
    except LocatedError as error:
        yield error
    except OSError as error:
        problem = f"the file cannot be read: {error.strerror or error}"
        yield LocatedError(problem, action="check the path and its permissions", origin=origin)


def _unknown(suffix: str, origin: Origin) -> LocatedError:
    problem = f"files that end in {suffix!r} are not read" if suffix else "files without a suffix are not read"
    action = "save it as .docx" if suffix in (".doc", ".odt", ".rtf") else ""
    return LocatedError(problem, wanted=f"one of {' '.join(SUFFIXES)}", action=action, origin=origin)


def suspicions(text: str) -> Iterator[str]:
    """Yield what makes a text look unlike one that somebody wrote to be read."""
    solid = "".join(text.split())
    if "\ufffd" in text:
        yield "holds characters that were lost before (U+FFFD)"
    if len(_MOJIBAKE.findall(text)) >= 2:
        yield "looks like UTF-8 that was read in another encoding"
    if len(text.split()) < FEWEST_WORDS and len(solid) < 8 * FEWEST_WORDS:
        yield f"has fewer than {FEWEST_WORDS} words"
    if sum(character.isalpha() for character in solid) < len(solid) / 2:
        yield "fewer than half of its characters are letters"
    if re.search(r"[!-~]{200}", text):
        yield "holds 200 characters without a space: data rather than text"
    paragraphs = [paragraph for paragraph in text.split("\n\n") if len(paragraph) > 20]
    if len(paragraphs) >= 4 and len(set(paragraphs)) <= len(paragraphs) / 2:
        yield "says most of its paragraphs twice or more"


def _none_left(report: DocumentReport) -> DataError:
    reasons = "; ".join(f"{reason}: {where.count}, first {where.first[0]}" for reason, where in report.skipped.items())
    found = f"no document can be used: {reasons}" if reasons else "no documents were found"
    return DataError(found, wanted=f"files that end in one of {' '.join(SUFFIXES)}", action="check the paths")
