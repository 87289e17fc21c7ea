import pytest
from rouge_score.rouge_scorer import RougeScorer

from budwood.evals.metrics import exact_match, rouge_l, verbatim


@pytest.mark.parametrize(
    ("text", "references", "score"),
    [
        ("Lima", ["Lima"], 1.0),
        (" Lima\n", ["Lima"], 1.0),
        ("Lima", [" Lima"], 1.0),
        ("lima", ["Lima"], 0.0),
        ("Lima.", ["Lima"], 0.0),
        ("Lima", ["Cuzco", "Lima"], 1.0),
        ("", ["Lima"], 0.0),
    ],
)
def test_exact_match_ignores_outer_white_space_only_and_takes_the_best_reference(text, references, score):
    assert exact_match(text, references) == score


def test_strict_exact_match_counts_white_space():
    assert exact_match("Lima ", ["Lima"], verbatim) == 0.0
    assert exact_match("Lima", ["Lima"], verbatim) == 1.0


def test_rouge_l_of_a_hand_computed_case():
    # Longest common subsequence "the cat sat": precision 3/4, recall 3/5.
    assert rouge_l("The cat sat down", ["the black cat sat there"]) == pytest.approx(2 * 0.75 * 0.6 / 1.35)


def test_rouge_l_takes_the_best_reference():
    assert rouge_l("a b", ["x", "a b", "a"]) == 1.0


@pytest.mark.parametrize("text", ["The cat_sat, 3 times; didn't it?", "", "  ", "running runs", "A-b c.d 12,5"])
def test_rouge_l_is_the_packages_on_ascii_text(text):
    reference = "the cat sat 3 times, running: a b c d 12 5 it didn t"
    theirs = RougeScorer(["rougeL"], use_stemmer=False).score(reference, text)["rougeL"].fmeasure
    assert rouge_l(text, [reference]) == theirs


def test_rouge_l_knows_other_alphabets():
    assert rouge_l("Москва большая", ["москва"]) == pytest.approx(2 / 3)
