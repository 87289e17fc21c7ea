"""Facts about a world that does not exist: a subject, a relation, an object, a text that states it, and two probes.

Every name is invented, so no base can know the answer, and an object hardly ever comes twice unless it is a common
noun. The draw uses Python's own generator with a text as its seed, which is the same on every platform and version.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from budwood.data.facts import Fact
from budwood.data.problems import Origin
from budwood.data.synthetic import fillers, names, objects, words
from budwood.data.synthetic.relations import RELATIONS, Relation
from budwood.errors import UsageError


@dataclass(frozen=True, slots=True)
class Subject:
    """What a fact is about: its kind, its name and its pronouns."""

    kind: str
    name: str
    pronouns: names.Pronouns


SUBJECTS: dict[str, Callable[[Random], str]] = {
    "town": names.town,
    "organisation": names.organisation,
    "product": names.product,
    "work": names.title,
    "vessel": names.ship,
    "species": names.species,
    "event": names.event,
}
# What a template may hold besides the fact's own parts, and how it is made up.
_MADE_UP: dict[str, Callable[[Random], str]] = {
    "town": names.town,
    "organisation": names.organisation,
    "person": objects.MAKERS["person"],
    "year": objects.MAKERS["year"],
    "number": lambda rng: str(rng.randrange(12, 400)),
    "month": lambda rng: rng.choice(words.MONTHS),
    "weekday": lambda rng: rng.choice(words.WEEKDAYS),
}
_VOWEL = re.compile(r"[ai]|e(?![uw])|o(?!ne)|u(?!ni|ku|se)")
_SILENT_H = ("hour", "honest", "hono", "heir")


def generate(count: int, seed: int, relations: Sequence[Relation] = RELATIONS) -> list[Fact]:
    """Return invented facts.

    Args:
        count: how many. A smaller count gives the first of them.
        seed: of the draw.
        relations: to draw from, each alike; hold some out to see whether a scorer carries over to others.

    Raises:
        UsageError: a negative count, or no relations.
    """
    if count < 0 or not relations:
        raise UsageError(
            f"{count} facts of {len(relations)} relations", wanted="a count ≥ 0 and at least one relation"
        )
    rng = Random(f"budwood facts {seed}")
    facts: list[Fact] = []
    asked: set[tuple[str, str]] = set()
    while len(facts) < count:
        fact = _draw(rng, rng.choice(relations), Origin(f"generated facts, seed {seed}", len(facts) + 1))
        key = (fact.subject, fact.relation)
        if key not in asked and _is_sound(fact):
            asked.add(key)
            facts.append(fact)
    return facts


def article(noun: str) -> str:
    """Return "a" or "an", by the sound with which a noun begins."""
    lowered = noun.lower()
    return "an" if _VOWEL.match(lowered) or lowered.startswith(_SILENT_H) else "a"


def _is_sound(fact: Fact) -> bool:
    """Whether the text names the object exactly once, apart from the subject, and does not hold the probe itself."""
    text, answer, subject = (part.casefold() for part in (fact.evidence, fact.object, fact.subject))
    apart = answer not in subject and subject not in answer and subject in text
    return apart and text.count(answer) == 1 and fact.task_descriptive.removesuffix(" .").casefold() not in text


def _draw(rng: Random, relation: Relation, origin: Origin) -> Fact:
    teller = _Teller(rng, _subject(rng, relation.subject))
    answer = objects.MAKERS[relation.object](rng)
    probe, other = rng.sample(relation.probes, 2)
    style = rng.choices(_STYLES, _SHARES)[0]
    evidence = style(teller, _Telling(relation, answer, other))
    name = teller.subject.name
    return Fact(
        evidence=evidence,
        subject=name,
        relation=relation.name,
        object=answer,
        task_descriptive=f"{teller.tell(probe, answer)} .",
        task_schematic=f"Name the object.\nsubject: {name} ; relation: {relation.name} ; object: {answer}",
        origin=origin,
        object_type=relation.object,
    )


def _subject(rng: Random, kind: str) -> Subject:
    if kind == "person":
        return Subject(kind, *names.person(rng))
    return Subject(kind, SUBJECTS[kind](rng), names.IT)


@dataclass(frozen=True, slots=True)
class _Telling:
    """What is to be told, and a probe that may be used for it because it is not the one that asks."""

    relation: Relation
    answer: str
    probe: str


@functools.cache
def _parts(template: str) -> tuple[str, ...]:
    """Text and slots of a template in turn: the odd parts are names of slots."""
    return tuple(re.split(r"\{(\w+)\}", template))


class _Teller:
    """Fills templates about one subject; what is made up is drawn anew each time."""

    def __init__(self, rng: Random, subject: Subject) -> None:
        self.rng, self.subject = rng, subject
        self._own = {"s": subject.name, "he": subject.pronouns.subject, "his": subject.pronouns.possessive}

    def tell(self, template: str, answer: str = "") -> str:
        """Return a template as a text with a capital at its start."""
        text = self.fill(template, answer)
        return text[0].upper() + text[1:]

    def fill(self, template: str, answer: str = "") -> str:
        """Return a template as a text."""
        return "".join(self._slot(part, answer) if i % 2 else part for i, part in enumerate(_parts(template)))

    def sentence(self, template: str, answer: str = "") -> str:
        text = self.tell(template, answer)
        return text if text.endswith((".", ":")) else f"{text}."

    def fact(self, telling: _Telling) -> str:
        return self.sentence(self.rng.choice(telling.relation.tellings), telling.answer)

    def others(self, relation: Relation, count: int) -> list[tuple[Relation, str]]:
        """Return other relations of the subject, with objects."""
        rest = [one for one in RELATIONS if one.subject == relation.subject and one is not relation]
        return [(one, objects.MAKERS[one.object](self.rng)) for one in self.rng.sample(rest, count)]

    def after(self, relation: Relation) -> list[str]:
        """Return nothing, a sentence without a fact, or one with another fact about the subject."""
        chance = self.rng.random()
        if chance < 0.35:
            return []
        if chance < 0.7:
            return [self.sentence(self.rng.choice(fillers.AFTER[self.subject.kind]))]
        ((other, answer),) = self.others(relation, 1)
        return [self.sentence(self.rng.choice(other.tellings), answer)]

    def _slot(self, slot: str, answer: str) -> str:
        if slot == "o":
            return answer
        if slot in ("a", "A"):
            return article(answer)
        return self._own[slot] if slot in self._own else _MADE_UP[slot](self.rng)


def _encyclopaedic(teller: _Teller, telling: _Telling) -> str:
    before = [teller.sentence(teller.rng.choice(fillers.BEFORE))] if teller.rng.random() < 0.3 else []
    return " ".join([*before, teller.fact(telling), *teller.after(telling.relation)])


def _news(teller: _Teller, telling: _Telling) -> str:
    date = f"{teller.rng.randrange(1, 29)} {teller.rng.choice(words.MONTHS)}"
    line = teller.rng.choice((f"{names.town(teller.rng).upper()}, {date} – ", f"{names.town(teller.rng)} ({date}): "))
    source = teller.sentence(teller.rng.choice(fillers.NEWS))
    return line + " ".join([teller.fact(telling), *teller.after(telling.relation), source])


def _note(teller: _Teller, telling: _Telling) -> str:
    head = teller.tell(teller.rng.choice(fillers.NOTE_HEADS))
    more = [teller.sentence(teller.rng.choice(fillers.NOTES))] if teller.rng.random() < 0.6 else []
    return " ".join([head, teller.fact(telling), *more])


def _dialogue(teller: _Teller, telling: _Telling) -> str:
    rng, question = teller.rng, teller.tell(telling.relation.ask)
    first, second = (names.person(rng)[0].split()[0] for _ in range(2))
    if rng.random() < 0.4:
        reply = telling.answer[0].upper() + telling.answer[1:] + rng.choice((".", ", I believe.", ", they say."))
    else:
        clause = telling.probe[0].lower() + telling.probe[1:]  # a name at its start is filled in, with its capital
        reply = teller.sentence(rng.choice(fillers.REPLIES).replace("{clause}", clause), telling.answer)
    if rng.random() < 0.5:
        return f"{first}: {question}\n{second}: {reply}"
    return f"“{question}” asked {first}. “{reply}” That was all that {second} would say."


def _sheet(teller: _Teller, telling: _Telling) -> str:
    others = teller.others(telling.relation, teller.rng.randrange(1, 4))
    lines = [f"{one.name.capitalize()}: {answer}" for one, answer in [(telling.relation, telling.answer), *others]]
    teller.rng.shuffle(lines)
    head = teller.rng.choice(("Name: {s}", "{s}", "Entry: {s}", "Record for {s}"))
    return "\n".join([teller.tell(head), *lines])


_STYLES = (_encyclopaedic, _news, _note, _dialogue, _sheet)
_SHARES = (0.45, 0.18, 0.13, 0.12, 0.12)
