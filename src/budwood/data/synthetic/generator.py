"""Facts about a world that does not exist: a subject, a relation, an object, a text that states it, and two probes.

Every subject is invented, so no base can know the answer. An object is invented, too, or it is a word that everybody
knows: a country, a language, a profession (`world.py`). Real text has mostly the latter, among many names that are not
asked for, and a scorer that has seen invented objects only looks for invented names.

The draw uses Python's own generator with a text as its seed, which is the same on every platform and version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from budwood.data.facts import Fact
from budwood.data.problems import Origin
from budwood.data.synthetic import names, objects
from budwood.data.synthetic.relations import RELATIONS, Relation
from budwood.data.synthetic.styles import SHARES, STYLES
from budwood.data.synthetic.teller import Subject, Teller, Telling
from budwood.errors import UsageError

SUBJECTS: dict[str, Callable[[Random], str]] = {
    "town": names.town,
    "organisation": names.organisation,
    "product": names.product,
    "work": names.title,
    "vessel": names.ship,
    "species": names.species,
    "event": names.event,
    "band": names.band,
    "region": names.region,
}


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


def _is_sound(fact: Fact) -> bool:
    """Whether the text names the object exactly once, apart from the subject, and does not hold the probe itself."""
    text, answer, subject = (part.casefold() for part in (fact.evidence, fact.object, fact.subject))
    apart = answer not in subject and subject not in answer and subject in text
    return apart and text.count(answer) == 1 and fact.task_descriptive.removesuffix(" .").casefold() not in text


def _draw(rng: Random, relation: Relation, origin: Origin) -> Fact:
    teller = Teller(rng, _subject(rng, relation.subject))
    answer = objects.MAKERS[relation.object](rng)
    probe, other = rng.sample(relation.probes, 2)
    style = rng.choices(STYLES, SHARES)[0]
    evidence = style(teller, Telling(relation, answer, other))
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
