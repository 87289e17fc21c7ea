"""A result that is no better than its base says so in one line; a better one says nothing."""

from __future__ import annotations

import pytest

from budwood.reports.report import write_report
from budwood.reports.shortfall import learned_something, shortfall
from tests.reports.test_documents import RECALL, kind
from tests.reports.test_report import METRICS, Page, make_run


def choice(base: float, chosen: float) -> dict:
    return {"choice": {"nll": {"base": base, "chosen": chosen}, "histogram": {"a": 1, "b": 2}, "texts": 3}}


def recall(before: float, after: float, nll_after: float = 1.0) -> dict:
    figures = kind(before, after)
    figures["after"]["nll"] = nll_after
    return RECALL | {"other_words": figures}


def test_prompts_that_make_it_worse():
    said = shortfall(choice(3.1, 3.25))
    assert said == (
        "worse than the model without prompts (3.25 against 3.1 nats a token): train longer or give more text"
    )
    assert shortfall(choice(3.1, 3.0)) is None
    assert shortfall(choice(3.1, 3.1)).startswith("no better than")
    close = shortfall(choice(3.10001, 3.10002))  # as many digits as tell them apart
    assert "3.10002 against 3.10001" in close
    assert shortfall({"choice": None}) is None  # nothing was held out


@pytest.mark.parametrize(
    ("before", "after", "nll_after", "better"),
    [
        (0.2, 0.3, 2.0, True),  # more is right
        (0.2, 0.2, 0.9, True),  # likelier
        (0.2, 0.2, 1.0, False),
        (0.2, 0.1, 0.5, False),
        (1.0, 1.0, 0.1, False),  # all was right before
    ],
)
def test_documents_that_taught_nothing(before, after, nll_after, better):
    found = recall(before, after, nll_after)
    assert learned_something(found) is better
    said = shortfall({"recall": found})
    assert said is None if better else said.startswith("nothing new was learned")
    if before == 1:
        assert "all of it was known before" in said


def test_examples_are_held_against_the_base():
    assert shortfall({"base_evaluation_loss": 2.0, "best_evaluation_loss": 1.9}) is None
    said = shortfall({"base_evaluation_loss": 2.0, "best_evaluation_loss": 2.5})
    assert said.startswith("worse than the base on the rows that were held out (2.5 against 2 nats a token)")
    for unknown in ({}, {"base_evaluation_loss": None, "best_evaluation_loss": None}):
        assert shortfall(unknown) is None


def test_the_page_says_it_and_praises_nothing(tmp_path):
    run = make_run(tmp_path / "run", metrics=METRICS | choice(3.1, 3.25))
    text = " ".join(Page(write_report(run)["report"].read_text()).text.split())
    assert "worse than the model without prompts (3.25 against 3.1" in text
    assert "not clearly better" not in text
    better = make_run(tmp_path / "better", metrics=METRICS | choice(3.1, 3.0))
    text = " ".join(Page(write_report(better)["report"].read_text()).text.split())
    assert "without prompts (" not in text and "not clearly better" in text
