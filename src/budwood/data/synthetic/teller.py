"""Fills the templates of relations and fillers: the subject's parts, the object, and what is made up around them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from budwood.data.synthetic import fillers, names, objects, words
from budwood.data.synthetic.relations import RELATIONS, Relation


@dataclass(frozen=True, slots=True)
class Subject:
    """What a fact is about: its kind, its name and its pronouns."""

    kind: str
    name: str
    pronouns: names.Pronouns


# What a template may hold besides the fact's own parts, and how it is made up.
MADE_UP: dict[str, Callable[[Random], str]] = {
    **objects.MAKERS,
    "lived": objects.lifetime,
    "number": lambda rng: str(rng.randrange(12, 400)),
    "month": lambda rng: rng.choice(words.MONTHS),
    "weekday": lambda rng: rng.choice(words.WEEKDAYS),
}
_VOWEL = re.compile(r"[ai]|e(?![uw])|o(?!ne)|u(?!ni|k[ru]|ru|se)")
_SILENT_H = ("hour", "honest", "hono", "heir")


def article(noun: str) -> str:
    """Return "a" or "an", by the sound with which a noun begins."""
    lowered = noun.lower()
    return "an" if _VOWEL.match(lowered) or lowered.startswith(_SILENT_H) else "a"


@dataclass(frozen=True, slots=True)
class Telling:
    """What is to be told, and a probe that may be used for it because it is not the one that asks."""

    relation: Relation
    answer: str
    probe: str


@functools.cache
def _parts(template: str) -> tuple[str, ...]:
    """Text and slots of a template in turn: the odd parts are names of slots."""
    return tuple(re.split(r"\{(\w+)\}", template))


class Teller:
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

    def fact(self, telling: Telling) -> str:
        return self.sentence(self.rng.choice(telling.relation.tellings), telling.answer)

    def others(self, relation: Relation, count: int) -> list[tuple[Relation, str]]:
        """Return other relations of the subject, with objects."""
        rest = [one for one in RELATIONS if one.subject == relation.subject and one is not relation]
        return [(one, objects.MAKERS[one.object](self.rng)) for one in self.rng.sample(rest, min(count, len(rest)))]

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
        if slot in self._own:
            return self._own[slot]
        if slot.startswith("a_"):
            noun = MADE_UP[slot.removeprefix("a_")](self.rng)
            return f"{article(noun)} {noun}"
        return MADE_UP[slot](self.rng)
