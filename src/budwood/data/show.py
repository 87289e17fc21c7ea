"""Looking at data before training: single rows token by token, and all that is wrong with a set of files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from budwood.data.examples import BATCH, Paths, as_paths, good_rows, render_kept
from budwood.data.problems import LocatedError, Origin
from budwood.data.render import UNTRAINED, Encoded, Renderer
from budwood.data.report import DataReport
from budwood.data.rows import Row, read_rows
from budwood.data.settings import DataSettings
from budwood.errors import UsageError

_FIRST = range(3)


@dataclass(frozen=True, slots=True)
class ShownRow:
    """One sequence of a row, as the model gets it.

    Attributes:
        origin: where the row stands.
        shape: the shape by which it was read.
        text: all its tokens as text, special ones included.
        answer: the trained ones as text.
        ids: the tokens.
        tokens: the text of each; where a token is a part of a character only, its name in the vocabulary.
        trained: True where the loss falls.
        loss_weights: the factor of each token's loss.
    """

    origin: Origin
    shape: str
    text: str
    answer: str
    ids: list[int]
    tokens: list[str]
    trained: list[bool]
    loss_weights: list[float]

    def to_dict(self) -> dict[str, Any]:
        """The row as `--json` prints it."""
        return {**asdict(self), "origin": str(self.origin)}


def show(paths: Paths, renderer: Renderer, rows: range = _FIRST) -> list[ShownRow]:
    """Render some rows as training would, each sequence of a row on its own; over-long ones too.

    Args:
        paths: one file or several, counted through.
        renderer: how rows become ids.
        rows: which rows, from 0. Reading stops after the last of them.

    Raises:
        DataError: a row up to there cannot be used.
        UsageError: the files hold fewer rows.
    """
    every = (row for path in as_paths(paths) for row in read_rows(path))
    wanted = list(islice(every, rows.start, rows.stop, rows.step))
    if not wanted:
        raise UsageError(f"there is no row {rows.start}: the files hold fewer", action="ask for earlier rows")
    return [_shown(row, one, renderer) for row in wanted for one in renderer.encode(row)]


def _shown(row: Row, one: Encoded, renderer: Renderer) -> ShownRow:
    trained = [label != UNTRAINED for label in one.labels]
    answer = [token for token, is_trained in zip(one.input_ids, trained) if is_trained]
    text, answered = (
        renderer.tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in (one.input_ids, answer)
    )
    return ShownRow(
        origin=row.origin,
        shape=row.shape,
        text=str(text),
        answer=str(answered),
        ids=one.input_ids,
        tokens=[_piece(renderer, token) for token in one.input_ids],
        trained=trained,
        loss_weights=one.loss_weights,
    )


def _piece(renderer: Renderer, token: int) -> str:
    text = str(renderer.tokenizer.decode([token], clean_up_tokenization_spaces=False))
    return text if text and "\ufffd" not in text else str(renderer.tokenizer.convert_ids_to_tokens(token))


def check(paths: Paths, renderer: Renderer | None, settings: DataSettings) -> DataReport:
    """Read everything and collect what is wrong, without stopping at the first problem.

    Args:
        paths: one file or several.
        renderer: how rows become ids; None checks the rows only, and counts no tokens.
        settings: the longest row.
    """
    report = DataReport(rendered=renderer is not None)
    for rows in _batches(good_rows(paths, report)):
        if renderer is not None:
            for _ in render_kept(rows, 0, renderer, settings, report):
                pass  # it is counted, and not needed any more
            continue
        for row in rows:
            report.read(row)
        report.kept += len(rows)
    if report.rows and not report.kept and not report.problem_count:
        reasons = ", ".join(report.dropped)
        report.problem(LocatedError(f"every row is dropped: {reasons}", action="raise max_length"))
    return report


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while batch := list(islice(rows, BATCH)):
        yield batch
