"""What the object of a fact can be: names, common nouns, titles, numbers, dates, amounts and codes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from budwood.data.synthetic import names, words, world

Maker = Callable[[Random], str]
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


def _noun(nouns: tuple[str, ...], before: tuple[str, ...] = (), share: float = 0.5) -> Maker:
    """Draw a noun, and with the probability `share` a word before it."""

    def make(rng: Random) -> str:
        return f"{rng.choice(before)} {rng.choice(nouns)}" if before and rng.random() < share else rng.choice(nouns)

    return make


def _occupation(rng: Random) -> str:
    if rng.random() < 0.4:
        return f"{rng.choice(words.MATERIALS)} {rng.choice(words.CRAFTS)}"
    return rng.choice(words.OCCUPATIONS)


def _year(rng: Random) -> str:
    return str(rng.randrange(1450, 2024))


def _date(rng: Random) -> str:
    return _day_of(rng, rng.randrange(1700, 2024))


def _day_of(rng: Random, year: int) -> str:
    return f"{rng.randrange(1, 29)} {rng.choice(words.MONTHS)} {year}"


def lifetime(rng: Random) -> str:
    """Return the dates of a birth and a death, as reference works give them behind a name."""
    born = rng.randrange(1650, 1940)
    return f"{_day_of(rng, born)} – {_day_of(rng, born + rng.randrange(24, 90))}"


def _count(rng: Random) -> str:
    """A whole number from 12 to some millions, as many of each size."""
    return f"{rng.randrange(12, 10 ** rng.randrange(2, 7)):,}"


def _amount(unit: str, largest: int) -> Maker:
    def make(rng: Random) -> str:
        size = rng.randrange(2, largest)
        number = f"{size}.{rng.randrange(1, 10)}" if size < 100 and rng.random() < 0.3 else f"{size:,}"
        return f"{number} {rng.choice(words.UNITS[unit])}"

    return make


def _money(rng: Random) -> str:
    number = f"{rng.randrange(2, 100)} million" if rng.random() < 0.4 else f"{rng.randrange(4, 900) * 50:,}"
    return f"{number} {rng.choice(words.UNITS['money'])}"


def _code(rng: Random) -> str:
    letters = "".join(rng.choice(_LETTERS) for _ in range(rng.choice((1, 2, 3))))
    return rng.choice((f"{letters}-{rng.randrange(10, 10000)}", f"{letters}{rng.randrange(10, 1000)}"))


def _day(rng: Random) -> str:
    which = rng.choice(("first", "second", "third", "last"))
    return f"the {which} {rng.choice(words.WEEKDAYS)} of {rng.choice(words.MONTHS)}"


MAKERS: dict[str, Maker] = {
    "person": lambda rng: names.person(rng)[0],
    "town": names.town,
    "river": names.river,
    "region": names.region,
    "language": names.tongue,
    "organisation": names.organisation,
    "title": names.title,
    "product": names.product,
    "vessel": names.ship,
    "occupation": _occupation,
    "office": _noun(words.OFFICES, ("acting", "deputy", "assistant", "honorary"), 0.3),
    "rank": _noun(words.RANKS, ("acting", "brevet", "flag", "staff"), 0.4),
    "field": _noun(words.FIELDS, words.APPROACHES),
    "material": _noun(words.MATERIALS),
    "animal": _noun(words.ANIMALS, words.COLOURS, 0.4),
    "instrument": _noun(words.INSTRUMENTS),
    "food": _noun(words.FOODS, ("dried", "wild", "smoked", "pickled", "fresh"), 0.3),
    "dish": _noun(words.DISHES),
    "sport": _noun(words.SPORTS),
    "genre": _noun(words.GENRES),
    "colour": _noun(words.COLOURS, words.SHADES),
    "habitat": _noun(words.HABITATS),
    "industry": _noun(words.INDUSTRIES),
    "goods": _noun(words.GOODS, words.MATERIALS),
    "tree": _noun(words.CROPS_AND_TREES, words.COLOURS, 0.2),
    "landmark": _noun(words.FEATURES, words.MATERIALS, 0.4),
    "illness": _noun(words.ILLNESSES),
    "hobby": _noun(words.HOBBIES),
    "year": _year,
    "date": _date,
    "day": _day,
    "number": _count,
    "page number": lambda rng: str(rng.randrange(48, 1400)),
    "money": _money,
    "length": _amount("length", 300),
    "distance": _amount("distance", 900),
    "mass": _amount("mass", 900),
    "code": _code,
    "country": _noun(world.COUNTRIES),
    "city": _noun(world.CITIES),
    "continent": _noun(world.CONTINENTS),
    "known_language": _noun(world.LANGUAGES),
    "nationality": _noun(world.NATIONALITIES),
    "faith": _noun(world.FAITHS),
    "profession": _noun(world.PROFESSIONS),
    "post": _noun(world.POSTS),
    "science": _noun(world.SCIENCES),
    "music": _noun(world.MUSIC),
    "film_genre": _noun(world.FILM_GENRES),
    "position": _noun(world.POSITIONS),
    "trade": _noun(world.TRADES),
}
