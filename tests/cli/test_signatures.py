"""The stand-in library of these tests takes what the real one takes."""

from __future__ import annotations

import importlib
import inspect

from tests.cli import stand_ins as stand_in


def test_stand_ins_have_the_signatures_of_the_library():
    for name, functions in stand_in.MODULES.items():
        real = importlib.import_module(f"budwood.{name}")
        for function in functions:
            assert _shape(function) == _shape(getattr(real, function.__name__)), function.__name__
    conversation = importlib.import_module("budwood._chat").Conversation
    assert [p[0] for p in _shape(stand_in.Conversation.ask)] == [p[0] for p in _shape(conversation.ask)]
    assert _shape(stand_in.Conversation.reset) == _shape(conversation.reset)
    run = importlib.import_module("budwood.run").Run
    assert _shape(stand_in.Run.export) == _shape(run.export)
    assert _shape(stand_in.Run.verify) == _shape(run.verify)


def _shape(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
