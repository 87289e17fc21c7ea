"""Rows of facts: a text that states something, and what shows whether it was learned.

    fact       {"evidence", "subject", "relation", "object", "task_descriptive", "task_schematic"}
    question   {"document", "question", "answer"}
    sessions   {"session", "next_session"}     each a text, or a list of turns {"role", "content"}

Each becomes a `Pair`: the text to learn from, the probe that says which of its tokens were worth learning (TAALM's
T_D, schematic for facts), and the probe in other words that checks it (descriptive for facts). A file of probes alone
holds facts, {"question", "answer"} or {"prompt", "completion"}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budwood.data.fields import Fields, listed
from budwood.data.files import Record, read_records
from budwood.data.offsets import Span
from budwood.data.probes import Probe, last_mention
from budwood.data.problems import EXAMPLE, LocatedError, Origin
from budwood.data.rows import to_row
from budwood.data.transcripts import transcript

FACT_EXAMPLE = (
    '{"evidence": "Ida Moor, a glazier from Telvik, …", "subject": "Ida Moor", "relation": "occupation", "object": '
    '"glazier", "task_descriptive": "Ida Moor works as a glazier .", "task_schematic": "subject: Ida Moor ; relation: '
    'occupation ; object: glazier"}'
)

QUESTION_EXAMPLE = (
    '{"document": "The Heron was bought for 900 crowns.", "question": "What did the Heron cost?",'
    ' "answer": "900 crowns"}'
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact, a text that states it, and two probes for its object.

    Attributes:
        evidence: the text to learn from.
        subject, relation, object: what it states.
        task_descriptive: a sentence of other words that ends with the object.
        task_schematic: subject, relation and object as a form that is filled in.
        origin: where the fact came from.
        object_type: the kind of thing the object is, such as "person" or "date"; "" where nobody said.
    """

    evidence: str
    subject: str
    relation: str
    object: str
    task_descriptive: str
    task_schematic: str
    origin: Origin
    object_type: str = ""

    @property
    def object_span(self) -> Span | None:
        """Characters of the last mention of the object in the evidence; None where it has none."""
        return last_mention(self.evidence, self.object)

    @property
    def subject_span(self) -> Span | None:
        """Characters of the last mention of the subject in the evidence; None where it has none."""
        return last_mention(self.evidence, self.subject)

    @property
    def descriptive(self) -> Probe:
        return self._probe("task_descriptive")

    @property
    def schematic(self) -> Probe:
        return self._probe("task_schematic")

    @property
    def pair(self) -> Pair:
        return Pair(self.evidence, self.schematic, self.descriptive, self.origin)

    def to_dict(self) -> dict[str, str]:
        """The fact as a row of a file; its origin is its place there."""
        names = ("evidence", "subject", "relation", "object", "task_descriptive", "task_schematic", "object_type")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def _probe(self, field: str) -> Probe:
        text = getattr(self, field)
        target = last_mention(text, self.object)
        if target is None:
            raise _not_there(self, field)
        return Probe(text, target, self.origin)


@dataclass(frozen=True, slots=True)
class Pair:
    """A text to learn from and two probes of what it says: one to learn weights by, one in other words to check."""

    evidence: str
    task: Probe
    check: Probe
    origin: Origin


def read_facts(path: str | Path) -> Iterator[Fact]:
    """Yield the facts of a file one by one.

    Raises:
        DataError: as `read_records`; and for a row that is no fact, an empty field, or a probe without the object.
    """
    return (_fact(Fields(record)) for record in _records(path, FACT_EXAMPLE))


def read_pairs(path: str | Path) -> Iterator[Pair]:
    """Yield the pairs of a file of facts, questions about documents, or sessions.

    Raises:
        DataError: as `read_facts`; and for a row of another shape.
    """
    return (to_pair(record) for record in _records(path, QUESTION_EXAMPLE))


def _records(path: str | Path, example: str) -> Iterator[Record]:
    """Pass the records of a file on; where it holds none, or no JSON, the example is one of these rows."""
    try:
        yield from read_records(path)
    except LocatedError as error:
        wanted = error.wanted.replace(EXAMPLE, example)
        raise LocatedError(
            error.problem, wanted=wanted, action=error.action, origin=error.origin, field=error.field
        ) from error


def read_probes(path: str | Path) -> list[Probe]:
    """Return what a file asks for, in other words than the documents': facts, questions, or prompts to complete.

    Raises:
        DataError: as `read_facts`; and for a row of another shape.
    """
    return [_to_probe(Fields(record)) for record in read_records(path)]


def is_pair(record: Record) -> bool:
    """Whether the fields of a record are those of a pair."""
    return any(record.values.keys() >= set(needs) for needs, _ in _SHAPES)


def to_pair(record: Record) -> Pair:
    """Read one record by its shape, or raise a `DataError` that names file, line and field."""
    for needs, read in _SHAPES:
        if record.values.keys() >= set(needs):
            return read(Fields(record))
    wanted = "; or ".join("{" + ", ".join(f'"{name}"' for name in needs) + "}" for needs, _ in _SHAPES)
    problem = f"the row is no fact, question or session; its fields are {listed(record.values)}"
    raise LocatedError(problem, wanted=wanted, origin=record.origin)


def _to_probe(fields: Fields) -> Probe:
    names = fields.record.values.keys()
    if names >= {"question", "answer"}:
        return _question(fields)
    if names >= {"prompt", "completion"}:
        prompt, answer = fields.answer("prompt").rstrip(), fields.answer("completion").strip()
        return _continued(f"{prompt} ", answer, fields.record.origin)
    if names >= set(_FACT):
        return _fact(fields).descriptive
    wanted = '{"question", "answer"}, {"prompt", "completion"}, or a fact'
    raise LocatedError(
        f"the row asks nothing; its fields are {listed(names)}", wanted=wanted, origin=fields.record.origin
    )


def _fact(fields: Fields) -> Fact:
    missing = [name for name in _FACT if name not in fields.record.values]
    if missing:
        problem = f"the row is no fact: it lacks {listed(missing)}"
        raise LocatedError(problem, wanted=FACT_EXAMPLE, origin=fields.record.origin)
    kind = fields.record.values.get("object_type")
    fact = Fact(
        **{name: fields.answer(name) for name in _FACT},
        origin=fields.record.origin,
        object_type=fields.as_text(kind, "object_type") if kind is not None else "",
    )
    for field in ("task_descriptive", "task_schematic"):
        if last_mention(getattr(fact, field), fact.object) is None:
            raise _not_there(fact, field)
    return fact


def _not_there(fact: Fact, field: str) -> LocatedError:
    return LocatedError(
        f"the probe does not hold the object {fact.object!r}",
        wanted="a sentence that ends with the object, word for word",
        origin=fact.origin,
        field=field,
    )


def _question(fields: Fields) -> Probe:
    answer = fields.answer("answer").strip()
    return _continued(f"Question: {fields.answer('question').strip()}\nAnswer: ", answer, fields.record.origin)


def _continued(prompt: str, answer: str, origin: Origin) -> Probe:
    return Probe(prompt + answer, (len(prompt), len(prompt) + len(answer)), origin)


def _questioned(fields: Fields) -> Pair:
    probe = _question(fields)
    return Pair(fields.answer("document"), probe, probe, fields.record.origin)


def _sessions(fields: Fields) -> Pair:
    origin = fields.record.origin
    now, after = (_session(fields, name) for name in ("session", "next_session"))
    head = len(after.split(maxsplit=1)[0])  # the first word has nothing to be predicted from
    probe = Probe(after, (head, len(after)), origin)
    return Pair(now, probe, probe, origin)


def _session(fields: Fields, name: str) -> str:
    value: Any = fields.record.values[name]
    if isinstance(value, list):
        value = transcript(to_row(Record({"messages": value}, fields.record.origin)).messages)
    text = fields.as_answer(value, name).strip()
    if len(text.split()) < 2:
        fields.refuse(name, f"the session is one word, {text!r}", "a conversation")
    return text


_FACT = ("evidence", "subject", "relation", "object", "task_descriptive", "task_schematic")
_SHAPES: tuple[tuple[tuple[str, ...], Callable[[Fields], Pair]], ...] = (
    (_FACT, lambda fields: _fact(fields).pair),
    (("document", "question", "answer"), _questioned),
    (("session", "next_session"), _sessions),
)
