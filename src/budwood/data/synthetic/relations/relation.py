"""What a relation is: how it is asked for, probed and told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation between a subject and an object of fixed kinds.

    In templates {s} stands for the subject, {o} for the object, {a} for its article, {he} and {his} for the subject's
    pronouns, and any kind of `teller.MADE_UP`, such as {town} {person} {year} {country}, for things that only take up
    room; {a_country} is one with its article.
    A template has no full stop, and its first letter is made a capital.

    Attributes:
        name: the relation in words.
        subject, object: kinds: of `generator.SUBJECTS` and of `objects.MAKERS`.
        ask: a question whose answer is the object.
        probes: sentences that end with the object.
        tellings: sentences that hold both, the subject first in some and the object first in others.
    """

    name: str
    subject: str
    object: str
    ask: str
    probes: tuple[str, ...]
    tellings: tuple[str, ...]
