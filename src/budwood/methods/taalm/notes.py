"""Documents made ready for learning: windows of sentences, probes of each kind, and older text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from budwood.data.documents import Document, DocumentReport, Window, make_clozes, make_windows, read_documents
from budwood.data.facts import read_probes
from budwood.data.keep_set import KeepFact, load_keep_set
from budwood.data.offsets import OffsetTokens
from budwood.data.probes import Probe
from budwood.data.render import Encoded
from budwood.data.report import DataReport, Progress
from budwood.errors import ConfigError, DataError
from budwood.methods.taalm.examination import Questions
from budwood.methods.taalm.learner_settings import DocumentSettings

FEWEST = 5  # tokens of a row: a fact has something it is about, a verb and something new


@dataclass(frozen=True)
class Notes:
    """Documents and all that is asked about them.

    Attributes:
        documents: what is learned.
        windows: their parts, in order.
        rehearsed: windows of older text that are mixed in.
        older: all windows of older text.
        anchors: windows of text whose predictions should stay, where the user gave some.
        reserved: facts of the keep-set that are not examined, since what is known of them is trained on.
        questions: the probes.
        report: what was read; what is remarked in it later appears in `rows`.
        rows: the same in rows and tokens; a row is a window.
    """

    documents: tuple[Document, ...]
    windows: list[Window]
    rehearsed: list[Encoded]
    older: list[Encoded]
    anchors: list[Encoded]
    reserved: tuple[KeepFact, ...]
    questions: Questions
    report: DocumentReport
    rows: DataReport


def read_notes(
    paths: Sequence[Path],
    tokens: OffsetTokens,
    settings: DocumentSettings,
    *,
    max_length: int,
    seed: int,
    earlier: tuple[Probe, ...] = (),
    progress: Progress | None = None,
) -> Notes:
    """Read documents, and all that a run asks of a model.

    Args:
        paths: files and folders.
        tokens: the base's tokenizer.
        max_length: no window is longer, in tokens.
        seed: of the choice of blanks and of older text.
        earlier: what an earlier run had learned.
        progress: as in `make_windows`.

    Raises:
        DataError: as `read_documents` and `read_probes`; or nothing could tell what was learned.
        ConfigError: the windows are too short; or older text is to be reviewed, and there is none.
    """
    found = read_documents(paths)
    files = settings.probes or _probe_files(paths)
    _forget_skipped(found.report, files)
    longest = min(settings.window, max_length)
    windows = _long_enough(
        make_windows(
            found.documents, tokens, max_tokens=longest, with_heading=settings.with_heading, progress=progress
        ),
        found.report,
    )
    clozes = make_clozes(found.documents, most=settings.blanks, seed=seed)
    asked: list[Probe] = [probe for file in files for probe in read_probes(file)]
    if not clozes and not asked:
        raise DataError(
            "no blank can be made from the documents, so nothing would tell what was learned",
            wanted="sentences of five words or more with a name, a number or a rare word at their end",
            action="give more text, or questions about it with --probes FILE",
        )
    older = _pieces(settings.rehearse, tokens, longest)
    if settings.review == "older" and not older:
        raise ConfigError("learner.review=older without older text", action="give some with --rehearse FILE")
    rehearsed = [] if settings.review == "older" else _rehearsed(settings, older, len(windows), seed)
    anchors = _pieces(settings.anchor_text, tokens, longest)
    examined, reserved = _halves(load_keep_set(settings.keep_set), settings.reserves_facts)
    questions = Questions(tuple(clozes), tuple(asked), examined, earlier)
    rows = _rows(found.report, [window.encoded for window in windows], rehearsed)
    return Notes(found.documents, windows, rehearsed, older, anchors, reserved, questions, found.report, rows)


def _long_enough(windows: list[Window], report: DocumentReport) -> list[Window]:
    """Return the windows that hold more than a word or two: each counts as a row, whatever its length.

    Raises:
        DataError: none does.
    """
    kept = []
    for window in windows:
        if window.encoded.supervised < FEWEST:
            report.skip(f"fewer than {FEWEST} tokens", window.document.origin)
        else:
            kept.append(window)
    if not kept:
        raise DataError(
            f"no document has {FEWEST} tokens", wanted="sentences that say something", action="give more text"
        )
    return kept


def _probe_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files of questions that lie in the folders of documents."""
    return tuple(file for path in paths if path.is_dir() for file in sorted(path.glob("probes*.jsonl")))


def _forget_skipped(report: DocumentReport, files: Sequence[Path]) -> None:
    """Take files of questions off the list of what was skipped: they are used."""
    names = {str(file) for file in files}
    for reason, where in list(report.skipped.items()):
        if all(origin.file in names for origin in where.first):
            del report.skipped[reason]


def _pieces(path: Path | None, tokens: OffsetTokens, longest: int) -> list[Encoded]:
    """Return the windows of a text that was given."""
    if path is None:
        return []
    return [window.encoded for window in make_windows(read_documents(path).documents, tokens, max_tokens=longest)]


def _rehearsed(settings: DocumentSettings, older: list[Encoded], windows: int, seed: int) -> list[Encoded]:
    """Return windows of older text, drawn without repetition: at most their share of all rows, and one at least."""
    most = max(1, round(windows * settings.rehearse_share / (1 - settings.rehearse_share)))
    return random.Random(f"rehearse {seed}").sample(older, min(most, len(older)))


def _halves(facts: list[KeepFact], split: bool) -> tuple[tuple[KeepFact, ...], tuple[KeepFact, ...]]:
    """Return the facts that are examined, and every second one as text to train on where that is wanted.

    Nobody is examined on what he was trained to keep.
    """
    return (tuple(facts[::2]), tuple(facts[1::2])) if split else (tuple(facts), ())


def _rows(documents: DocumentReport, windows: list[Encoded], rehearsed: list[Encoded]) -> DataReport:
    report = DataReport(dropped=documents.skipped, remarks=documents.remarks)
    for row in (*windows, *rehearsed):
        report.rows += 1
        report.keep([row])
    report.train_rows, report.evaluation_rows = len(windows) + len(rehearsed), 0
    return report
