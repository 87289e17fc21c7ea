"""Invented names, built from syllables in the manner of several languages. No list of real names is used."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from budwood.data.synthetic.words import (
    ADJECTIVES,
    ANIMALS,
    CREATURES,
    GENRES,
    GOODS,
    INDUSTRIES,
    INSTRUMENTS,
    OCCASIONS,
    THINGS,
)


@dataclass(frozen=True, slots=True)
class Language:
    """How the names of a made-up language are put together: words are separated by spaces.

    Attributes:
        onsets, nuclei, codas: of the syllables inside a name; "-" stands for nothing.
        given_f, given_m: endings of given names of women and of men.
        family: endings of family names.
        town: endings of names of towns.
    """

    onsets: str
    nuclei: str
    codas: str
    given_f: str
    given_m: str
    family: str
    town: str


LANGUAGES = (
    Language(
        "b br d dr f g h j k kl l m n r s sk st t tr v", "a e i o u a e", "l n r s - - -",
        "a e ine hild run", "ar en ik olf und", "sen mark gaard strand vik berg", "vik havn by lund fors dal",
    ),
    Language(
        "b c d f g l m n p r s t v z", "a e i o u ia io", "- - - n r l",
        "a ella ina etta ia", "o ino ardo ello io", "etti ani oni ese ucci aldi", "ano ara ezza ona ello ate",
    ),
    Language(
        "b ch d g k l m n p r s sh t v y z", "a e i o u a o", "- - n r l v k",
        "a ka ina itsa", "an ko ir oslav ek", "ov enko ski ich ak in", "grad ovo itsa nik any yev",
    ),
    Language(
        "b br c cr d f g gl gr h l m n p r s sh st t th w", "a e i o u ea oa ow", "n r l s ck - -",
        "a ie wen eth y", "ald on er in ard", "worth ley combe by ridge shaw", "ton ham ford bury mouth wick stow",
    ),
    Language(
        "b d f h j k kh l m n q r s sh t w y z", "a i u a ee aa", "- n r l m d -",
        "a iya een ah", "an ir id im ad", "ani awi uri eddin oush", "abad iyya ar oun estan",
    ),
    Language(
        "h k m n r s sh t y ts ch", "a i u e o ai", "- - - - n",
        "ko mi e ka na", "ro ki to shi ta", "moto yama da mura kawa no", "shima zaki hama nori saki",
    ),
    Language(
        "b ch d gu h k l ll m n p qu r s t y", "a e i o u ua", "- - - n l r",
        "a ela ita una", "o ando uel ez", "ez era anda illo ares", "ales ura illa anca oja",
    ),
    Language(
        "d dw f g gw l ll m n p r rh s t th y", "a e i o w y ae", "n r l s dd - -",
        "wen eth ys a", "an yn wyn or", "ow ell as yth ach", "fa non stow ant lan ddyn",
    ),
    Language(
        "d h k kw l m mb n nd ng nk s t w z", "a e i o u a", "- - - - -",
        "a isa enda i", "o ani eka ule", "ande oni ala ime ezi", "ani undu ala ombe oro",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pronouns:
    """The pronouns of a subject: he, she or it; his, her or its."""

    subject: str
    possessive: str


SHORTEST = 5  # letters; shorter names read like words
_SMALL = ("the", "a", "of", "for", "and", "in", "no")
HE, SHE, IT = Pronouns("he", "his"), Pronouns("she", "her"), Pronouns("it", "its")


def _stem(language: Language, rng: Random, syllables: int) -> str:
    parts: list[str] = []
    for _ in range(syllables):
        sounds = (rng.choice(text.split()) for text in (language.onsets, language.nuclei, language.codas))
        parts.append("".join(sound for sound in sounds if sound != "-"))
    return "".join(parts)


def _word(language: Language, rng: Random, endings: str, syllables: int) -> str:
    """A stem and an ending; a vowel of the stem gives way to one of the ending, and no letter stands three times."""
    stem, ending = _stem(language, rng, syllables), rng.choice(endings.split())
    if len(stem) + len(ending) < SHORTEST:
        stem += _stem(language, rng, 1)
    if ending[0] in "aeiouyw":
        stem = stem.rstrip("aeiouwy") or stem
    elif stem[-1] == ending[0]:
        ending = ending[1:] or ending
    word = stem + ending
    return "".join(letter for i, letter in enumerate(word) if word[max(0, i - 2) : i] != letter * 2).capitalize()


def person(rng: Random) -> tuple[str, Pronouns]:
    """Return the name of a person and the pronouns that go with it."""
    language, pronouns = rng.choice(LANGUAGES), rng.choice((HE, SHE))
    given = _word(language, rng, language.given_f if pronouns is SHE else language.given_m, rng.choice((1, 1, 2)))
    family = _word(language, rng, language.family, rng.choice((1, 1, 2)))
    middle = f" {rng.choice('ABDEFGHJKLMNPRSTV')}." if rng.random() < 0.1 else ""
    return f"{given}{middle} {family}", pronouns


def town(rng: Random) -> str:
    """Return the name of a town."""
    language = rng.choice(LANGUAGES)
    name = _word(language, rng, language.town, rng.choice((1, 1, 2)))
    before = rng.choice(("Upper", "Lower", "Old", "New", "Port", "Saint", "Great", "Little")) + " "
    return (before if rng.random() < 0.15 else "") + name


def river(rng: Random) -> str:
    """Return the name of a river."""
    return _word(rng.choice(LANGUAGES), rng, rng.choice(("a", "er", "en", "ol", "ava", "une", "ith")), 1)


def region(rng: Random) -> str:
    """Return the name of a country or a province."""
    language = rng.choice(LANGUAGES)
    ending = rng.choice(("ia", "land", "ania", "mark", "ora", "istan", "esia", "ovia"))
    return _word(language, rng, ending, rng.choice((1, 2)))


def tongue(rng: Random) -> str:
    """Return the name of a language."""
    return _word(rng.choice(LANGUAGES), rng, rng.choice(("ish", "ese", "ian", "ic", "ari", "ak")), rng.choice((1, 2)))


def brand(rng: Random) -> str:
    """Return the name under which things are sold."""
    language = rng.choice(LANGUAGES)
    return _word(language, rng, rng.choice(("ex", "on", "ix", "ora", "um", "ax", "eo", "is", "ta", "ent")), 1)


def organisation(rng: Random) -> str:
    """Return the name of a firm, a club or an institute."""
    family = _word(language := rng.choice(LANGUAGES), rng, language.family, 1)
    place = town(rng)
    return rng.choice(
        (
            f"{family} & {_word(language, rng, language.family, 1)}",
            f"{family} {rng.choice(GOODS).capitalize()}",
            f"{brand(rng)} {rng.choice(('Works', 'Systems', 'Group', 'Holdings', 'Partners', 'Foundry', 'Labs'))}",
            f"{place} {rng.choice(('Institute', 'Society', 'Trust', 'Bank', 'Choir', 'Museum', 'College', 'Press'))}",
            f"{rng.choice(INDUSTRIES).split()[0].capitalize()} Guild of {place}",
            f"{family} Brothers",
        )
    )


def title(rng: Random) -> str:
    """Return the title of a book, a film or a song."""
    adjective, thing, other = rng.choice(ADJECTIVES), rng.choice(THINGS), rng.choice(THINGS)
    form = rng.choice(
        (
            f"the {adjective} {thing}",
            f"{adjective} {thing}",
            f"the {thing} of {town(rng)}",
            f"a {thing} for {person(rng)[0].split()[0]}",
            f"{thing} and {other}",
            f"the {thing}'s {other}",
            f"no {thing} in {town(rng)}",
            f"{town(rng)} {thing}",
            f"beyond the {adjective} {thing}",
        )
    )
    words = [word if word in _SMALL else word[0].upper() + word[1:] for word in form.split()]
    return " ".join([words[0][0].upper() + words[0][1:], *words[1:]])


def band(rng: Random) -> str:
    """Return the name of a band."""
    form = f"the {rng.choice(ADJECTIVES)} {rng.choice(THINGS)}".title()
    return rng.choice((form, brand(rng), f"{town(rng)} {rng.choice(('Ensemble', 'Orchestra', 'Quartet', 'Trio'))}"))


def product(rng: Random) -> str:
    """Return the name of a product: a brand and a model."""
    numbered = (str(rng.randrange(2, 10) * 100), f"{rng.choice('ACDEGKLMRSTVXZ')}{rng.randrange(1, 100)}")
    model = rng.choice((*numbered, "Mini", "Pro", "Plus", "Duo", f"Mark {rng.choice(('II', 'III', 'IV', 'V'))}"))
    return f"{brand(rng)} {model}"


def ship(rng: Random) -> str:
    """Return the name of a vessel."""
    things = f"{rng.choice(ADJECTIVES).capitalize()} {rng.choice(THINGS).capitalize()}"
    name = rng.choice((person(rng)[0], things, f"Star of {town(rng)}", f"{town(rng)} Trader"))
    return f"{rng.choice(('MV', 'SS', 'RV', 'the barque', 'the ferry'))} {name}"


def species(rng: Random) -> str:
    """Return the name of an animal or a plant that nobody has seen."""
    language = rng.choice(LANGUAGES)
    return f"{_word(language, rng, language.town, 1)} {rng.choice(CREATURES)}"


def event(rng: Random) -> str:
    """Return the name of something that takes place again and again."""
    about = rng.choice((rng.choice(THINGS), rng.choice(GENRES), rng.choice(ANIMALS), rng.choice(INSTRUMENTS)))
    return f"{town(rng)} {about.title()} {rng.choice(OCCASIONS)}"
