from budwood.data.fact_checks import foils, without_repeats
from budwood.data.facts import Fact
from budwood.data.problems import Origin


def test_repeats_of_an_object_are_capped_by_relation():
    def fact(relation, answer):
        return Fact("e", "s", relation, answer, f"d {answer}", f"s {answer}", Origin("f"))

    facts = [fact("office", "Bishop"), fact("office", "bishop"), fact("piece", "bishop"), fact("office", "mayor")]
    assert without_repeats(facts, 1) == [facts[0], facts[2], facts[3]]
    assert without_repeats(facts, 2) == facts


def test_a_foil_asks_for_the_same_object_of_another_subject():
    def fact(subject, relation, answer):
        return Fact("e", subject, relation, answer, f"The {relation} of {subject} is {answer} .", answer, Origin("f"))

    facts = [
        fact("Bo Ek", "office", "mayor"),
        fact("Ida Moor", "office", "Mayor"),
        fact("Ulf", "office", "bishop"),
        fact("Bo Ek", "pet", "cat"),
    ]
    first, second, third, lonely = foils(facts)
    assert first.text == second.text.replace("Mayor", "mayor") == "The office of Ulf is mayor ."
    assert (first.answer, second.answer, third.answer) == ("mayor", "Mayor", "bishop")
    assert third.text == "The office of Bo Ek is bishop ."
    assert lonely is None
