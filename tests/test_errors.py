"""Errors: three parts, an exit code each, and survival of a process border."""

from __future__ import annotations

import pickle

import pytest

from budwood import errors
from budwood.errors import BudwoodError, nearest

CODES = {"TrainingError": 3, "NonFiniteError": 3, "OutOfMemoryError": 3, "VerificationError": 4}
CODES |= {"InterruptedRunError": 130}
TREE = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BudwoodError)]


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_each_has_its_exit_code_and_its_place_in_the_drawn_tree(kind: type[BudwoodError]):
    assert kind.exit_code == CODES.get(kind.__name__, 2)
    assert f"{kind.__name__} " in errors.__doc__


def test_the_message_holds_all_three_parts():
    error = BudwoodError("got this", wanted="that", action="do so")
    assert str(error).splitlines() == ["got this", "  wanted: that", "  to do:  do so"]
    assert error.to_dict() == {
        "type": "BudwoodError",
        "got": "got this",
        "wanted": "that",
        "action": "do so",
        "exit_code": 2,
    }
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_nearest():
    assert nearest("gfit", ["gift", "lora"]) == "did you mean 'gift'? There are: gift, lora"
    assert nearest("zzz", ["gift"]) == "There are: gift"
    assert nearest("zzz", []) == "There are: none"
