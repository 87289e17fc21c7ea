"""The settings on a run's page: by what they are about, in words, with their meaning."""

from __future__ import annotations

from budwood.recipe import resolve
from budwood.reports.settings import counts, groups, label, labelled

GIVEN = {"model": "smollm2", "evidence": {"kind": "repair", "paths": ["text.txt"]}}


def test_every_setting_of_a_real_recipe_is_in_a_group_with_its_meaning():
    values = resolve(None, GIVEN).model_dump(mode="json")
    found = {group.title: group.rows for group in groups(values)}
    assert list(found) == ["What it was made from, and how", "The adapter", "The method", "Data", "Training"]
    rows = {name: (value, meaning) for name, value, meaning in found["Training"]}
    assert rows["batch size"] == (4, "Rows that pass through the model together, per process.")
    assert ("evidence: paths", ["text.txt"], "") in found["What it was made from, and how"]
    for title in ("The adapter", "The method", "Data", "Training"):
        unexplained = [name for name, _, meaning in found[title] if not meaning and name != "name"]
        assert not unexplained, (title, unexplained)
    assert not any("_" in name for rows in found.values() for name, _, _ in rows)
    assert not any(value in (None, "", [], {}) for rows in found.values() for _, value, _ in rows)


def test_a_method_of_another_version_is_shown_without_meanings():
    (group,) = groups({"learner": {"name": "newer", "some_thing": 3}})
    assert group.rows == (("name", "newer", ""), ("some thing", 3, ""))
    assert groups({}) == []


def test_what_was_dropped_is_told_by_reason_and_place():
    rows = {
        "train_rows": 4,
        "dropped": {"too long": {"count": 3, "first": ["a, line 1", "a, line 2"]}},
        "problems": [],
    }
    assert counts(rows) == [("train rows", 4), ("dropped: too long", "3: a, line 1, a, line 2, and 1 more")]
    assert labelled({"a": {"b_c": 1}, "d": None}) == [("a: b c", 1)] and label("x_y.z") == "x y: z"
