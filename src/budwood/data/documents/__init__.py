"""Documents: files of text in, plain text out, in sentences, windows and blanks."""

from budwood.data.documents.cloze import Cloze, make_clozes
from budwood.data.documents.document import Document, DocumentReport, DocumentSet, Heading
from budwood.data.documents.read import MAX_BYTES, read_documents
from budwood.data.documents.windows import Window, make_windows

__all__ = [
    "MAX_BYTES",
    "Cloze",
    "Document",
    "DocumentReport",
    "DocumentSet",
    "Heading",
    "Window",
    "make_clozes",
    "make_windows",
    "read_documents",
]
