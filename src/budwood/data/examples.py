"""Files to the sequences of a run: read, rendered, sifted, counted and split.

Over-long rows are dropped and counted, never cut. The split goes by prompt: rows that ask the same are on one side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from budwood.data.problems import LocatedError
from budwood.data.render import Encoded, Renderer
from budwood.data.report import DataReport, Progress
from budwood.data.rows import Row, scan_rows
from budwood.data.settings import DataSettings

Paths = str | Path | Iterable[str | Path]
BATCH = 256  # rows that are tokenised together


@dataclass(frozen=True)
class ExampleSet:
    """What to train on and what to evaluate on.

    Attributes:
        train, evaluation: sequences, in the order of the files.
        rows: all rows read; `Encoded.row_index` is an index of it.
        report: the counts.
    """

    train: list[Encoded]
    evaluation: list[Encoded]
    rows: list[Row]
    report: DataReport

    def rows_of(self, sequences: Iterable[Encoded]) -> list[Row]:
        """Return the rows that these sequences came from, each once, in order."""
        return [self.rows[index] for index in dict.fromkeys(one.row_index for one in sequences)]


def load_examples(
    paths: Paths, renderer: Renderer, settings: DataSettings, *, seed: int, progress: Progress | None = None
) -> ExampleSet:
    """Read files of rows and split them.

    Args:
        paths: one file or several.
        renderer: how rows become ids.
        settings: the longest row, and what is held out; `template` and `system` are the renderer's affair.
        seed: of the split. The side of a row depends on the seed, its prompt and the other prompts, not on order.
        progress: called with rows, now and then where there are many.

    Raises:
        DataError: a file or a row cannot be used, a row has no supervised token, or no row is left. All is read first,
            so that the error lists everything that is wrong.
    """
    report = DataReport()
    rows = list(good_rows(paths, report))
    kept = _kept(rows, 0, renderer, settings, report, progress)
    beside = settings.evaluation_file
    held = _kept_beside(beside, rows, renderer, settings, report) if beside is not None else []
    report.require_good()
    if beside is not None:
        train = kept
        asked = {prompt_key(rows[one[0].row_index]) for one in held}
        report.overlap = sum(prompt_key(rows[one[0].row_index]) in asked for one in train)
    else:
        chosen = held_out([rows[one[0].row_index] for one in kept], settings, seed)
        train = [one for i, one in enumerate(kept) if i not in chosen]
        held = [one for i, one in enumerate(kept) if i in chosen]
    report.train_rows, report.evaluation_rows = len(train), len(held)
    return ExampleSet(_flat(train), _flat(held), rows, report)


def as_paths(paths: Paths) -> list[Path]:
    """Return one path or several as a list."""
    return [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]


def sift(row: Row, sequences: list[Encoded], renderer: Renderer, settings: DataSettings, report: DataReport) -> bool:
    """Count a rendered row, and return whether it is kept.

    Raises:
        LocatedError: no token of it is supervised.
    """
    longest = max(len(one.input_ids) for one in sequences)
    if any(one.supervised == 0 for one in sequences):
        problem = "no token of the row would be learned"
        raise LocatedError(problem, action="look at it with `budwood data show`", origin=row.origin)
    if renderer.writes_special(row):
        report.remark("the text itself holds a special token of the tokenizer", row.origin)
    if longest > settings.max_length:
        report.drop(f"longer than max_length = {settings.max_length} tokens", row.origin)
        return False
    if not any(any(one.loss_weights) for one in sequences):
        report.drop("weight 0", row.origin)
        return False
    report.keep(sequences)
    return True


def good_rows(paths: Paths, report: DataReport) -> Iterator[Row]:
    """Yield the good rows of all files; enter the bad ones, and go on with the next file after a broken one."""
    for path in as_paths(paths):
        try:
            for found in scan_rows(path):
                if isinstance(found, LocatedError):
                    report.rows += 1
                    report.problem(found)
                else:
                    yield found
        except LocatedError as error:
            report.problem(error)


def render_kept(
    rows: Sequence[Row], first_index: int, renderer: Renderer, settings: DataSettings, report: DataReport
) -> Iterator[list[Encoded]]:
    """Render a batch of rows, and yield the sequences of each that is kept; enter the rows that cannot be used."""
    for row, sequences in zip(rows, renderer.encode_rows(rows, first_index)):
        report.read(row)
        try:
            if isinstance(sequences, LocatedError):
                raise sequences
            if sift(row, sequences, renderer, settings, report):
                yield sequences
        except LocatedError as error:
            report.problem(error)


def _kept(
    rows: Sequence[Row],
    first_index: int,
    renderer: Renderer,
    settings: DataSettings,
    report: DataReport,
    progress: Progress | None = None,
) -> list[list[Encoded]]:
    """Return the sequences of each row that is kept; it is a problem where none is."""
    before = report.problem_count
    kept: list[list[Encoded]] = []
    for start in range(0, len(rows), BATCH):
        if progress is not None and start:
            progress("rows turned into tokens", start, len(rows))
        kept += render_kept(rows[start : start + BATCH], first_index + start, renderer, settings, report)
    if rows and not kept and report.problem_count == before:
        report.problem(_none_left(rows, report))
    return kept


def _none_left(rows: Sequence[Row], report: DataReport) -> LocatedError:
    reasons = "; ".join(f"{reason}: {where.count}, first {where.first[0]}" for reason, where in report.dropped.items())
    problem = f"none of {len(rows)} rows can be used: {reasons}"
    return LocatedError(problem, action="raise max_length, or shorten the rows")


def _kept_beside(
    path: Path, rows: list[Row], renderer: Renderer, settings: DataSettings, report: DataReport
) -> list[list[Encoded]]:
    """Read the rows to evaluate on, and append them to `rows`."""
    first, held = len(rows), list(good_rows(path, report))
    rows += held
    return _kept(held, first, renderer, settings, report)


def prompt_key(row: Row) -> str:
    """What stands before the first trained turn, up to white space: rows with one key ask the same."""
    return json.dumps([(message.role, " ".join(message.content.split())) for message in row.prompt])


def held_out(rows: Sequence[Row], settings: DataSettings, seed: int) -> set[int]:
    """Choose rows for evaluation by the hash of seed and prompt, whole prompts at a time.

    Returns:
        Indices of rows: at most `evaluation_rows_max`, and about `evaluation_fraction` of all. A prompt that many rows
        share is held out only if it fits; the last prompt is never, so that training has some.
    """
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(prompt_key(row), []).append(index)
    wanted = min(int(settings.evaluation_fraction * len(rows) + 0.5), settings.evaluation_rows_max)
    order = sorted(groups, key=lambda key: hashlib.sha256(f"{seed}:{key}".encode()).digest())
    chosen: set[int] = set()
    for key in order[:-1]:
        if len(chosen) + len(groups[key]) <= wanted:
            chosen.update(groups[key])
    return chosen


def _flat(kept: Iterable[list[Encoded]]) -> list[Encoded]:
    return [sequence for sequences in kept for sequence in sequences]
