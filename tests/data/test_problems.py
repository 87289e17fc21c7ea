import pickle

import pytest

from budwood.data.problems import LocatedError, Origin, described, shorten


def test_an_error_says_where_and_survives_pickling():
    error = LocatedError("odd", wanted="even", action="add 1", origin=Origin("a.jsonl", 3), field="n")
    assert str(error).startswith("a.jsonl, line 3, field 'n': odd")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.located() == error.located()
    assert error.located() == {"file": "a.jsonl", "line": 3, "field": "n", "problem": "odd · even · add 1"}


def test_a_file_as_a_whole_has_no_line():
    assert str(Origin("a.jsonl")) == "a.jsonl"
    assert LocatedError("odd", origin=Origin("a.jsonl")).located()["line"] is None


def test_long_values_are_cut_in_the_middle():
    assert shorten("short") == "'short'"
    cut = shorten("x" * 500 + "end")
    assert len(cut) < 70 and cut.endswith("end'")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (3, "the number 3"),
        (0.5, "the number 0.5"),
        ("a", "the text 'a'"),
        ([1], "a list [1]"),
        ({"a": 1}, "an object {'a': 1}"),
    ],
)
def test_values_are_described_in_plain_words(value, text):
    assert described(value) == text
