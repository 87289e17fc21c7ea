"""Names are found, corrected, or refused with the reason."""

from __future__ import annotations

import pytest

from budwood import _inspect
from budwood.errors import NotSupportedError, UsageError
from budwood.tuning.registry import find_method, find_tuner, left_out, methods, tuners


def test_a_wrong_name_gets_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'gift'"):
        find_method("gfit")
    with pytest.raises(UsageError, match="no tuner called 'lroa'"):
        find_tuner("lroa")


def test_what_is_left_out_is_refused_with_the_reason_and_listed_with_it():
    assert "full" in left_out() and not set(left_out()) & (set(methods()) | set(tuners()))
    rows = {row["method"]: row for row in _inspect.methods_table()}
    for name, reason in left_out().items():
        with pytest.raises(NotSupportedError) as refused:
            find_method(name)
        assert reason in refused.value.got and "gift" in refused.value.action
        assert rows[name]["learns"] == f"left out: {reason}" and rows[name].keys() == rows["gift"].keys()
