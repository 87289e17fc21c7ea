from random import Random

import pytest

from budwood.data.synthetic import names
from budwood.data.synthetic.relations import INVENTED, KNOWN
from budwood.data.synthetic.teller import MADE_UP, Subject, Teller, article


@pytest.mark.parametrize(
    ("noun", "expected"),
    [("apple", "an"), ("ukulele", "a"), ("umpire", "an"), ("euphonium", "a"), ("one", "a"), ("onion tart", "an"),
     ("honorary mayor", "an"), ("hawk", "a"), ("yak", "a"), ("Oboe", "an"), ("ewe", "a"), ("university", "a"),
     ("Ukrainian", "a"), ("Uruguayan", "a"), ("American", "an"), ("Urdu", "an")],
)  # fmt: skip
def test_articles_go_by_sound(noun, expected):
    assert article(noun) == expected


def test_slots_are_the_subjects_the_objects_or_made_up():
    teller = Teller(Random(0), Subject("person", "Ida Moor", names.SHE))
    assert teller.tell("{s} is {a} {o} of {his} town, {he} says", "engraver") == (
        "Ida Moor is an engraver of her town, she says"
    )
    texts = {teller.fill("{a_country}") for _ in range(3000)}
    assert {"an Angola", "a Ukraine"} <= texts and not texts & {"a Angola", "an Ukraine"}
    assert len({teller.fill("{person} {year}") for _ in range(50)}) == 50
    assert teller.sentence("{person} said so:").endswith(":") and teller.sentence("so").endswith("So.")


def test_other_facts_about_the_subject_are_as_many_as_there_are():
    teller = Teller(Random(0), Subject("band", "Bax", names.IT))
    (relation, *_) = [one for one in (*INVENTED, *KNOWN) if one.subject == "band"]
    others = teller.others(relation, 99)
    assert relation not in [one for one, _ in others] and {one.subject for one, _ in others} == {"band"}


def test_everything_a_template_asks_for_can_be_made_up():
    rng = Random(0)
    assert all(make(rng) for make in MADE_UP.values())
