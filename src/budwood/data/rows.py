"""Records in, rows out: the shapes are recognised by their fields and become messages.

    prompt/completion   {"prompt", "completion"}                text, and the text that continues it
    alpaca              {"instruction", "input", "output"}      `input` may be absent or empty
    messages            {"messages": [{"role", "content"}, …]}  every assistant turn is learned
    sharegpt            {"conversations": [{"from", "value"}, …]}   the same; a `system` field is its first turn
    instruction task    {"definition", "input", "outputs"}      the first output is learned, all are references

Any row may have a `weight`, and so may a message: a number ≥ 0 that scales the loss of its tokens. Other fields are
ignored. A new shape is one entry of `SHAPES`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budwood.data.fields import Fields, listed
from budwood.data.files import Record, scan_records
from budwood.data.problems import LocatedError, Origin, described, or_raise
from budwood.errors import nearest

ROLES = ("system", "user", "assistant")
# Parts of a message that carry what the model should say, but that no renderer here writes.
_UNREAD = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn.

    Attributes:
        role: "system", "user" or "assistant".
        content: the text.
        trained: whether the loss falls on it (assistant turns only).
    """

    role: str
    content: str
    trained: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation to learn from or to be judged by.

    Attributes:
        messages: the turns in order; at least one is trained.
        references: every accepted answer to the last trained turn, the learned one first.
        origin: where the row came from.
        task: the name of its task, where the file gives one.
        weights: one factor for each message, for the loss weights of its tokens; None stands for all 1.
        shape: the name of its shape.
        continues: whether the answer continues the prompt as text; without a chat template the two are then joined
            as they stand.
    """

    messages: tuple[Message, ...]
    references: tuple[str, ...]
    origin: Origin
    task: str | None = None
    weights: tuple[float, ...] | None = None
    shape: str = ""
    continues: bool = False

    @property
    def last_trained(self) -> int:
        """Index of the last trained message."""
        return max(i for i, message in enumerate(self.messages) if message.trained)

    @property
    def prompt(self) -> tuple[Message, ...]:
        """What stands before the first trained turn."""
        return self.messages[: min(i for i, message in enumerate(self.messages) if message.trained)]


@dataclass(frozen=True, slots=True)
class Content:
    """What a shape reads from the fields of a record: see `Row`."""

    messages: tuple[Message, ...]
    references: tuple[str, ...]
    task: str | None = None
    factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of rows.

    Attributes:
        name: how messages and reports call it.
        needs: the fields by which it is recognised.
        example: a row as it stands in a JSON Lines file.
        read: makes the content of a row; raises `LocatedError`.
        continues: see `Row.continues`.
    """

    name: str
    needs: tuple[str, ...]
    example: str
    read: Callable[[Fields], Content]
    continues: bool = False


def _exchange(question: str, answer: str, *others: str, task: str | None = None) -> Content:
    messages = (Message("user", question), Message("assistant", answer, trained=True))
    return Content(messages, (answer, *others), task)


def _prompt_completion(fields: Fields) -> Content:
    return _exchange(fields.text("prompt"), fields.answer("completion"))


def _alpaca(fields: Fields) -> Content:
    instruction, extra = fields.text("instruction"), fields.record.values.get("input")
    extra = fields.as_text(extra, "input") if extra is not None else ""
    return _exchange(f"{instruction}\n\n{extra}" if extra.strip() else instruction, fields.answer("output"))


def _instruction_task(fields: Fields) -> Content:
    values = fields.record.values
    outputs = fields.as_list(values["outputs"], "outputs", "accepted answers")
    answers = [fields.as_answer(value, f"outputs[{i}]") for i, value in enumerate(outputs)]
    task = values.get("task_id")
    task = fields.as_text(task, "task_id") if task is not None else None
    return _exchange(f"{fields.text('definition')}\n\n{fields.text('input')}", *answers, task=task)


@dataclass(frozen=True, slots=True)
class _Keys:
    """How a shape of conversations calls its parts, and its roles by the words that stand for them."""

    turns: str
    role: str
    content: str
    roles: Mapping[str, str]

    @property
    def turn(self) -> str:
        return f'an object {{"{self.role}", "{self.content}"}}'


_MESSAGES = _Keys("messages", "role", "content", {role: role for role in ROLES})
_SPEAKERS = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_SHAREGPT = _Keys("conversations", "from", "value", _SPEAKERS)


def _sharegpt(fields: Fields) -> Content:
    talk, system = _conversation(fields, _SHAREGPT), fields.record.values.get("system")
    if not system:
        return talk
    first = Message("system", fields.as_text(system, "system"))
    return Content((first, *talk.messages), talk.references, factors=(1.0, *(talk.factors or ())))


def _conversation(fields: Fields, keys: _Keys) -> Content:
    turns = fields.as_list(fields.record.values[keys.turns], keys.turns, keys.turn.replace("an object", "objects"))
    places = [f"{keys.turns}[{i}]" for i in range(len(turns))]
    factors = tuple(_factor(fields, turn, place, keys) for turn, place in zip(turns, places))
    messages = tuple(_message(fields, *each, keys) for each in zip(turns, places, factors))
    answers = [message.content for message in messages if message.trained]
    if not answers:
        silent = any(message.role == "assistant" for message in messages)
        word = next(word for word, role in keys.roles.items() if role == "assistant")
        problem = "every assistant turn has weight 0" if silent else f"no turn has the role {word!r}"
        fields.refuse(keys.turns, problem, "at least one assistant turn to learn", "remove the row, or add the answer")
    return Content(messages, (answers[-1],), factors=factors)


def _factor(fields: Fields, turn: Any, field: str, keys: _Keys) -> float:
    if not isinstance(turn, dict):
        fields.refuse(field, f"the value is {described(turn)}", keys.turn)
    return fields.as_weight(turn.get("weight"), f"{field}.weight")


def _message(fields: Fields, turn: dict[str, Any], field: str, factor: float, keys: _Keys) -> Message:
    for key in (keys.role, keys.content):
        if key not in turn:
            fields.refuse(field, f"the message has no {key!r}, only {listed(turn)}", keys.turn)
    for key in _UNREAD:
        if turn.get(key):
            fields.refuse(f"{field}.{key}", "this part of a message would be lost", action="write it into the content")
    word = fields.as_text(turn[keys.role], f"{field}.{keys.role}")
    if word not in keys.roles:
        fields.refuse(f"{field}.{keys.role}", f"there is no role {word!r}", nearest(word, keys.roles))
    role = keys.roles[word]
    read = fields.as_answer if role == "assistant" else fields.as_text
    text = read(turn[keys.content], f"{field}.{keys.content}")
    return Message(role, text, trained=role == "assistant" and factor > 0)


SHAPES: tuple[Shape, ...] = (
    Shape(
        "prompt/completion",
        ("prompt", "completion"),
        '{"prompt": "The capital of Peru is", "completion": " Lima."}',
        _prompt_completion,
        continues=True,
    ),
    Shape(
        "alpaca",
        ("instruction", "output"),
        '{"instruction": "Name the capital.", "input": "Peru", "output": "Lima"}',
        _alpaca,
    ),
    Shape(
        "messages",
        ("messages",),
        '{"messages": [{"role": "user", "content": "Capital of Peru?"}, {"role": "assistant", "content": "Lima"}]}',
        lambda fields: _conversation(fields, _MESSAGES),
    ),
    Shape(
        "sharegpt",
        ("conversations",),
        '{"conversations": [{"from": "human", "value": "Capital of Peru?"}, {"from": "gpt", "value": "Lima"}]}',
        _sharegpt,
    ),
    Shape(
        "instruction task",
        ("definition", "input", "outputs"),
        '{"definition": "Name the capital.", "input": "Peru", "outputs": ["Lima", "Lima, Peru"]}',
        _instruction_task,
    ),
)


def read_rows(path: str | Path) -> Iterator[Row]:
    """Yield the rows of a file one by one.

    Raises:
        DataError: as `read_records`; and for a row of no known shape, a field of the wrong type, an empty answer, a
            conversation without an assistant turn, an unknown role, or a weight that is no finite number ≥ 0.
    """
    return or_raise(scan_rows(path))


def scan_rows(path: str | Path) -> Iterator[Row | LocatedError]:
    """As `read_rows`, but a bad row is yielded as its error, and reading goes on after it."""
    for record in scan_records(path):
        try:
            yield record if isinstance(record, LocatedError) else to_row(record)
        except LocatedError as error:
            yield error


def to_row(record: Record) -> Row:
    """Read one record by its shape, or raise a `DataError` that names file, line and field."""
    shape, fields = shape_of(record), Fields(record)
    content = shape.read(fields)
    weight = fields.as_weight(record.values.get("weight"), "weight")
    factors = tuple(weight * factor for factor in content.factors or (1.0,) * len(content.messages))
    weights = None if all(factor == 1.0 for factor in factors) else factors
    return Row(content.messages, content.references, record.origin, content.task, weights, shape.name, shape.continues)


def shape_of(record: Record) -> Shape:
    """Return the one shape whose fields the record has; fields that are null count only where none other fits."""
    filled = {name for name, value in record.values.items() if value is not None}
    for names in (filled, set(record.values)):
        fitting = [shape for shape in SHAPES if names.issuperset(shape.needs)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            problem = f"the row fits several shapes: {', '.join(shape.name for shape in fitting)}"
            raise LocatedError(problem, action="keep the fields of one of them", origin=record.origin)
    raise _unknown_shape(record)


def _unknown_shape(record: Record) -> LocatedError:
    names = [str(name) for name in record.values]
    known = "\n          ".join(f"{shape.name}: {shape.example}" for shape in SHAPES)
    shape = max(SHAPES, key=lambda shape: sum(_likeness(need, names) for need in shape.needs) / len(shape.needs))
    changes = [_change(need, names) for need in shape.needs if need not in names]
    likely = any(_likeness(need, names) for need in shape.needs)
    action = (
        f"the nearest is {shape.name}: {', '.join(changes)}" if likely else "rename the fields to those of a shape"
    )
    if Path(record.origin.file).suffix.lower() in (".csv", ".tsv"):
        action += "; the first line of the file must hold the names of the columns"
    problem = f"the row has no known shape; its fields are {listed(record.values)}"
    return LocatedError(problem, wanted=known, action=action, origin=record.origin)


def _close(need: str, names: list[str]) -> str | None:
    lowered = {name.lower(): name for name in names}
    found = difflib.get_close_matches(need, lowered, n=1, cutoff=0.7)
    return lowered[found[0]] if found else None


def _likeness(need: str, names: list[str]) -> float:
    return 1.0 if need in names else 0.5 if _close(need, names) else 0.0


def _change(need: str, names: list[str]) -> str:
    close = _close(need, names)
    return f"rename {close!r} to {need!r}" if close else f"add {need!r}"
