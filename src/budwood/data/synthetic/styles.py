"""The kinds of text that a fact stands in: an article or a piece of one, news, a note, a conversation, a form."""

from __future__ import annotations

import re

from budwood.data.synthetic import fillers, names, words
from budwood.data.synthetic.teller import Teller, Telling

_NAMES = ("{s}", "{person}", "{country}", "{city}", "{organisation}", "{title}")  # beginnings that need no capital


def _encyclopaedic(teller: Teller, telling: Telling) -> str:
    before = [teller.sentence(teller.rng.choice(fillers.BEFORE))] if teller.rng.random() < 0.3 else []
    return " ".join([*before, teller.fact(telling), *teller.after(telling.relation)])


def _article(teller: Teller, telling: Telling) -> str:
    """Return the fact among names and things that are not asked for, as reference works tell it."""
    rng = teller.rng
    told = rng.choice(telling.relation.tellings)
    if rng.random() < 0.35 and told.startswith(_NAMES):
        told = rng.choice(fillers.OPENINGS) + told
    if rng.random() < 0.35:
        told += rng.choice(fillers.CLOSINGS)
    around = rng.sample(fillers.AROUND, 2)
    before, after = rng.choices(((0, 0), (1, 0), (0, 1), (1, 1)), (2, 2, 3, 2))[0]
    parts = [teller.sentence(one) for one in around[:before]]
    parts.append(teller.sentence(told, telling.answer))
    parts += [teller.sentence(one) for one in around[2 - after :]]
    return " ".join(parts)


def _excerpt(teller: Teller, telling: Telling) -> str:
    """Return a piece of an article that may begin and end within a sentence, as windows of a document do."""
    text = _article(teller, telling)
    parts = telling.answer, teller.subject.name
    begins = [text.casefold().index(part.casefold()) for part in parts]
    ends = [begin + len(part) for begin, part in zip(begins, parts)]
    starts = [match.start() for match in re.finditer(r"(?<=\s)\S", text)]
    start = teller.rng.choice([0, *(place for place in starts if place <= min(begins))])
    stop = teller.rng.choice([len(text), *(place for place in starts if place > max(ends))])
    return text[start:stop].strip()


def _news(teller: Teller, telling: Telling) -> str:
    date = f"{teller.rng.randrange(1, 29)} {teller.rng.choice(words.MONTHS)}"
    line = teller.rng.choice((f"{names.town(teller.rng).upper()}, {date} – ", f"{names.town(teller.rng)} ({date}): "))
    source = teller.sentence(teller.rng.choice(fillers.NEWS))
    return line + " ".join([teller.fact(telling), *teller.after(telling.relation), source])


def _note(teller: Teller, telling: Telling) -> str:
    head = teller.tell(teller.rng.choice(fillers.NOTE_HEADS))
    more = [teller.sentence(teller.rng.choice(fillers.NOTES))] if teller.rng.random() < 0.6 else []
    return " ".join([head, teller.fact(telling), *more])


def _dialogue(teller: Teller, telling: Telling) -> str:
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


def _sheet(teller: Teller, telling: Telling) -> str:
    others = teller.others(telling.relation, teller.rng.randrange(1, 4))
    lines = [f"{one.name.capitalize()}: {answer}" for one, answer in [(telling.relation, telling.answer), *others]]
    teller.rng.shuffle(lines)
    head = teller.rng.choice(("Name: {s}", "{s}", "Entry: {s}", "Record for {s}"))
    return "\n".join([teller.tell(head), *lines])


STYLES = (_encyclopaedic, _article, _excerpt, _news, _note, _dialogue, _sheet)
SHARES = (0.2, 0.3, 0.2, 0.1, 0.07, 0.06, 0.07)
