"""Documents made ready for learning: windows of sentences, probes of each kind, and older text to rehearse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from budwood.data.documents import Document, DocumentReport, Window, make_clozes, make_windows, read_documents
from budwood.data.facts import read_probes
from budwood.data.keep_set import load_keep_set
from budwood.data.offsets import OffsetTokens
from budwood.data.probes import Probe
from budwood.data.render import Encoded
from budwood.data.report import DataReport
from budwood.errors import DataError
from budwood.methods.taalm.examination import Questions
from budwood.methods.taalm.learner_settings import DocumentSettings


@dataclass(frozen=True)
class Notes:
    """Documents and all that is asked about them.

    Attributes:
        documents: what is learned.
        windows: their parts, in order.
        rehearsed: windows of older text.
        questions: the probes.
        report: what was read; what is remarked in it later appears in `rows`.
        rows: the same in rows and tokens; a row is a window.
    """

    documents: tuple[Document, ...]
    windows: list[Window]
    rehearsed: list[Encoded]
    questions: Questions
    report: DocumentReport
    rows: DataReport


def read_notes(
    paths: Sequence[Path], tokens: OffsetTokens, settings: DocumentSettings, *, max_length: int, seed: int
) -> Notes:
    """Read documents, and all that a run asks of a model.

    Args:
        paths: files and folders.
        tokens: the base's tokenizer.
        max_length: no window is longer, in tokens.
        seed: of the choice of blanks and of older text.

    Raises:
        DataError: as `read_documents` and `read_probes`; or nothing could tell what was learned.
        ConfigError: the windows are too short.
    """
    found = read_documents(paths)
    files = settings.probes or _probe_files(paths)
    _forget_skipped(found.report, files)
    longest = min(settings.window, max_length)
    windows = make_windows(found.documents, tokens, max_tokens=longest, with_heading=settings.with_heading)
    clozes = make_clozes(found.documents, most=settings.blanks, seed=seed)
    asked: list[Probe] = [probe for file in files for probe in read_probes(file)]
    if not clozes and not asked:
        raise DataError(
            "no blank can be made from the documents, so nothing would tell what was learned",
            wanted="sentences of five words or more with a name, a number or a rare word at their end",
            action="give more text, or questions about it with --probes FILE",
        )
    rehearsed = _rehearsed(settings, tokens, longest, len(windows), seed)
    questions = Questions(tuple(clozes), tuple(asked), tuple(load_keep_set(settings.keep_set)))
    rows = _rows(found.report, [window.encoded for window in windows], rehearsed)
    return Notes(found.documents, windows, rehearsed, questions, found.report, rows)


def _probe_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files of questions that lie in the folders of documents."""
    return tuple(file for path in paths if path.is_dir() for file in sorted(path.glob("probes*.jsonl")))


def _forget_skipped(report: DocumentReport, files: Sequence[Path]) -> None:
    """Take files of questions off the list of what was skipped: they are used."""
    names = {str(file) for file in files}
    for reason, where in list(report.skipped.items()):
        if all(origin.file in names for origin in where.first):
            del report.skipped[reason]


def _rehearsed(
    settings: DocumentSettings, tokens: OffsetTokens, longest: int, windows: int, seed: int
) -> list[Encoded]:
    """Return windows of older text, drawn without repetition: at most their share of all rows, and one at least."""
    if settings.rehearse is None:
        return []
    older = make_windows(read_documents(settings.rehearse).documents, tokens, max_tokens=longest)
    most = max(1, round(windows * settings.rehearse_share / (1 - settings.rehearse_share)))
    rows = [window.encoded for window in older]
    return random.Random(f"rehearse {seed}").sample(rows, min(most, len(rows)))


def _rows(documents: DocumentReport, windows: list[Encoded], rehearsed: list[Encoded]) -> DataReport:
    report = DataReport(dropped=documents.skipped, remarks=documents.remarks)
    for row in (*windows, *rehearsed):
        report.rows += 1
        report.keep([row])
    report.train_rows, report.evaluation_rows = len(windows) + len(rehearsed), 0
    return report
