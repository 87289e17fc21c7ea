"""Values as people read them."""

from __future__ import annotations

import pytest

from budwood._texts import flat, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (False, "no"),
        (1234567, "1,234,567"),
        (0.000123456, "0.0001235"),
        (None, "-"),
        ("", "-"),
        ([], "-"),
        ({}, "-"),
        (["a", 1000], "a, 1,000"),
        ("[bold]x", "[bold]x"),
    ],
)
def test_shown(value, text):
    assert shown(value) == text


def test_flat_names_the_leaves():
    assert list(flat({"a": {"b": 1, "c": {}}, "d": 2})) == [("a.b", 1), ("a.c", {}), ("d", 2)]
