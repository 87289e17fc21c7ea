"""What keeps a score on facts honest: objects that repeat, and objects that are likely for any subject.

Where many facts of a relation have one object ("bishop"), a model scores by learning it as the usual answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from budwood.data.facts import Fact
from budwood.data.probes import Probe, last_mention


def without_repeats(facts: Iterable[Fact], most: int) -> list[Fact]:
    """Return the facts in order, but of each (relation, object) at most the first `most`."""
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for fact in facts:
        key = (fact.relation, fact.object.casefold())
        seen[key] += 1
        if seen[key] <= most:
            kept.append(fact)
    return kept


def foils(facts: Sequence[Fact]) -> list[Probe | None]:
    """Return for each fact its descriptive probe with the subject of another fact of its relation; None without one.

    A model that finds the object less likely for that subject has learned the fact; one that finds it as likely has
    learned which objects the relation has.
    """
    by_relation: dict[str, list[Fact]] = {}
    for fact in facts:
        by_relation.setdefault(fact.relation, []).append(fact)
    return [_foil(fact, by_relation[fact.relation]) for fact in facts]


def _foil(fact: Fact, others: Sequence[Fact]) -> Probe | None:
    """Take the subject of the next fact, in a circle, whose object is another one."""
    first = next(i for i, other in enumerate(others) if other is fact)
    mention = last_mention(fact.descriptive.prompt, fact.subject)
    for other in (*others[first + 1 :], *others[:first]):
        if mention and other.object.casefold() != fact.object.casefold() and other.subject != fact.subject:
            start, stop = mention
            text = fact.task_descriptive
            moved = len(other.subject) - (stop - start)
            target = fact.descriptive.target
            return Probe(
                text[:start] + other.subject + text[stop:], (target[0] + moved, target[1] + moved), fact.origin
            )
    return None
