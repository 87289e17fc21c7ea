"""Files of rows as documents: a row is a text, a conversation, or the text of a fact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from budwood.data.documents.document import Document, Layout
from budwood.data.documents.plain import is_heading
from budwood.data.facts import is_pair, to_pair
from budwood.data.fields import Fields, listed
from budwood.data.files import Record, scan_records
from budwood.data.problems import LocatedError
from budwood.data.rows import to_row
from budwood.data.transcripts import transcript

RECORD_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
_WANTED = '{"text"}, {"messages"} or {"conversations"}, or a row of facts ({"evidence", …} or {"document", …})'


def scan_texts(path: Path) -> Iterator[Document | LocatedError]:
    """Yield the text of each row of a file, in order; a bad row is yielded as its error."""
    for record in scan_records(path):
        try:
            yield record if isinstance(record, LocatedError) else _document(record)
        except LocatedError as error:
            yield error


def _document(record: Record) -> Document:
    fields, layout = Fields(record), Layout()
    values = {name for name, value in record.values.items() if value is not None}
    if "title" in values:
        layout.title = fields.text("title")
    for paragraph in _text(fields, values).replace("\r\n", "\n").split("\n\n"):
        if is_heading(paragraph.strip() or "."):
            layout.heading(paragraph, 1)
        else:
            layout.paragraph(paragraph)
    return layout.document(record.origin)


def _text(fields: Fields, values: set[str]) -> str:
    if "text" in values:
        text = fields.text("text")
        if not text.strip():
            raise LocatedError("the document is empty", action="remove the row", origin=fields.record.origin)
        return text
    if values & {"messages", "conversations"}:
        return transcript(to_row(fields.record).messages)
    if is_pair(fields.record):
        return to_pair(fields.record).evidence
    problem = f"the row holds no text; its fields are {listed(sorted(values))}"
    raise LocatedError(problem, wanted=_WANTED, origin=fields.record.origin)
