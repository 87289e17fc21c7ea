"""The tasks of the table, their rows, and the three parts they are split into.

Each task of the corpus has 120 rows. The last 20 are for validation: no choice depends on them. Of the 20 before them
some select the learning rate. The rest is trained on. The 20 tasks of `dev.jsonl` are never trained on: they measure
transfer.

A row is written as "definition, Input: x, Output:" and its answer, by the project's renderer with the plain template:
the chat template of SmolLM2 would add 30 tokens a row and decide nothing between arms.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from budwood.data.files import Record, read_records
from budwood.data.render import Encoded, Renderer
from budwood.data.rows import to_row
from budwood.errors import DataError

VALIDATION_ROWS = 20
SELECTION_ROWS = 8
DEV_ROWS = 10

# Chosen before any run, from the parts of the corpus without third-party text (instruction induction and list
# functions), with definitions of at most 35 tokens and answers of mostly under 16: many rows fit into a minute.
PILOT = (
    "ii_active_to_passive",
    "ii_singular_to_plural",
    "ii_first_word_letter",
    "ii_letters_list",
    "ii_num_to_verbal",
    "lf_c006",
    "lf_c078",
    "lf_c049",
)
OTHERS = (
    "ii_translation_en-fr",
    "ii_sum",
    "ii_larger_animal",
    "ii_taxonomy_animal",
    "ii_orthography_starts_with",
    "ii_negation",
    "ii_sentiment",
    "lf_c029",
    "lf_c061",
    "lf_c048",
    "lf_c064",
    "lf_c077",
    "lf_c074",
    "lf_c241",
    "lf_c167",
    "lf_c169",
)
SUBSETS: dict[str, tuple[str, ...]] = {"small": PILOT, "full": PILOT + OTHERS}


@dataclass(frozen=True)
class Question:
    """A row to be judged by: one sequence for each accepted answer, the one that is learned first."""

    answers: tuple[Encoded, ...]


@dataclass(frozen=True)
class Task:
    """One task, encoded.

    Attributes:
        name: its name in the corpus.
        train: rows to learn from, each with its first accepted answer.
        selection: rows that choose the learning rate.
        validation: rows that the table reports.
    """

    name: str
    train: tuple[Encoded, ...]
    selection: tuple[Question, ...]
    validation: tuple[Question, ...]


@dataclass(frozen=True)
class Corpus:
    """What the cells of one table have in common.

    Attributes:
        tasks: the tasks that are trained on.
        dev: the last rows of each task that is not, as `validation`; `train` and `selection` are empty.
        digest: SHA-256 of both files.
    """

    tasks: tuple[Task, ...]
    dev: tuple[Task, ...]
    digest: str


def load_corpus(folder: Path, names: Sequence[str], renderer: Renderer) -> Corpus:
    """Read `train.jsonl` and `dev.jsonl` in `folder`.

    Raises:
        DataError: a file or a task is missing, or a task has too few rows.
    """
    files = [folder / "train.jsonl", folder / "dev.jsonl"]
    train, dev = (_by_task(path) for path in files)
    if missing := [name for name in names if name not in train]:
        raise DataError(f"{files[0]} lacks the tasks {', '.join(missing)}", wanted="the instruction-task corpus")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return Corpus(
        tuple(_split(name, train[name], renderer) for name in names),
        tuple(Task(name, (), (), _questions(records[-DEV_ROWS:], renderer)) for name, records in dev.items()),
        digest,
    )


def _by_task(path: Path) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in read_records(path):
        for name in ("task_id", "instance_id", "definition", "input", "outputs"):
            if name not in record.values:
                raise DataError(f"{record.origin}: no field {name!r}", wanted="a row of the instruction-task corpus")
        found[record.values["task_id"]].append(record)
    return {name: sorted(records, key=_instance) for name, records in found.items()}


def _instance(record: Record) -> str:
    return str(record.values["instance_id"])


def _split(name: str, records: list[Record], renderer: Renderer) -> Task:
    held = 2 * VALIDATION_ROWS
    if len(records) <= held:
        raise DataError(f"the task {name} has {len(records)} rows", wanted=f"more than {held}")
    selection = records[-held:-VALIDATION_ROWS][:SELECTION_ROWS]
    return Task(
        name,
        tuple(question.answers[0] for question in _questions(records[:-held], renderer)),
        _questions(selection, renderer),
        _questions(records[-VALIDATION_ROWS:], renderer),
    )


def _questions(records: Iterable[Record], renderer: Renderer) -> tuple[Question, ...]:
    return tuple(
        Question(tuple(_encode(record, output, renderer) for output in _outputs(record))) for record in records
    )


def _outputs(record: Record) -> list[str]:
    return list(dict.fromkeys(record.values["outputs"]))


def _encode(record: Record, output: str, renderer: Renderer) -> Encoded:
    prompt = f"{record.values['definition']}\nInput: {record.values['input']}\nOutput:"
    (encoded,) = renderer.encode(to_row(Record({"prompt": prompt, "completion": f" {output}"}, record.origin)))
    return encoded
