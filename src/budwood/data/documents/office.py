"""PDF and Word files to paragraphs, through pypdf and python-docx (the extra `documents`), loaded here only."""

from __future__ import annotations

import io
import re
import zipfile
from typing import TYPE_CHECKING

from budwood.data.documents.document import Layout
from budwood.data.documents.plain import blocks
from budwood.data.problems import LocatedError, Origin
from budwood.errors import NotSupportedError

if TYPE_CHECKING:
    from docx.document import Document as WordDocument
    from docx.text.paragraph import Paragraph
    from pypdf import PdfReader

MAX_UNPACKED = 256 * 2**20  # bytes; a Word file is a zip archive, and a small one can unpack to a whole disk
_HEADING_STYLE = re.compile(r"(?:heading|überschrift|titre|título|titolo|kop)\s*(\d)", re.IGNORECASE)


def read_pdf(data: bytes, origin: Origin) -> Layout:
    """Read the text layer of a PDF.

    Raises:
        NotSupportedError: pypdf is not installed.
        LocatedError: the file is damaged, encrypted, or has no text (a scan).
    """
    reader = _open_pdf(data, origin)
    layout = Layout()
    try:
        pages = [page.extract_text() for page in reader.pages]
        title = reader.metadata.title if reader.metadata else None
    except Exception as error:  # pypdf meets damage in many places and with many types
        raise _damaged("PDF", error, origin) from error
    if not any(page.strip() for page in pages):
        raise LocatedError(
            f"the {len(pages)} pages of the PDF have no text, only pictures",
            action="run a text recognition (OCR) over it first",
            origin=origin,
        )
    layout.title = str(title or "")
    for page in pages:
        for block in blocks(page):
            layout.paragraph(block)
    return layout


def _open_pdf(data: bytes, origin: Origin) -> PdfReader:
    try:
        import pypdf
    except ImportError as error:
        raise _missing("pypdf", "PDF files", origin) from error
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        locked = reader.is_encrypted and not reader.decrypt("")
    except Exception as error:
        raise _damaged("PDF", error, origin) from error
    if locked:
        raise LocatedError("the PDF is protected by a password", action="save a copy without one", origin=origin)
    return reader


def read_docx(data: bytes, origin: Origin) -> Layout:
    """Read paragraphs, headings and tables of a Word file, in order; a row of a table is a paragraph.

    Raises:
        NotSupportedError: python-docx is not installed.
        LocatedError: the file is damaged, or unpacks to more than 256 MiB.
    """
    document = _open_docx(data, origin)
    from docx.text.paragraph import Paragraph

    layout = Layout(title=document.core_properties.title or "")
    for part in document.iter_inner_content():
        if isinstance(part, Paragraph):
            _paragraph(part, layout)
        else:
            for row in part.rows:  # cells that were merged repeat their text
                cells = dict.fromkeys(cell.text.strip() for cell in row.cells)
                layout.paragraph(", ".join(cell for cell in cells if cell))
    return layout


def _paragraph(part: Paragraph, layout: Layout) -> None:
    style = (part.style.name if part.style is not None else "") or ""
    heading = _HEADING_STYLE.match(style)
    if heading or style == "Title":
        layout.heading(part.text, int(heading.group(1)) if heading else 1)
    else:
        layout.paragraph(part.text)


def _open_docx(data: bytes, origin: Origin) -> WordDocument:
    try:
        import docx
    except ImportError as error:
        raise _missing("python-docx", "Word files", origin) from error
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked <= MAX_UNPACKED:
            return docx.Document(io.BytesIO(data))
    except Exception as error:  # a damaged archive or damaged XML
        raise _damaged("Word", error, origin) from error
    raise LocatedError(
        f"the Word file unpacks to {unpacked / 2**20:.0f} MiB",
        wanted=f"at most {MAX_UNPACKED // 2**20} MiB",
        action="divide it",
        origin=origin,
    )


def _damaged(kind: str, error: Exception, origin: Origin) -> LocatedError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return LocatedError(f"the file is not a sound {kind} file: {reason}", action="save it again", origin=origin)


def _missing(package: str, what: str, origin: Origin) -> NotSupportedError:
    return NotSupportedError(
        f"{origin}: {what} are read by {package}, which is not installed",
        action="pip install 'budwood[documents]'",
    )
