import io
import os
import pty
import sys

import pytest

from budwood.training.progress import Part, describe, progress_display

EVENT = {"step": 2, "loss": 1.23456, "tokens_per_s": 1234.5}


def test_figures_in_words():
    assert describe(EVENT) == "loss 1.2346  tok/s 1,234"
    assert describe({"step": 0, "eval_loss": 2.0, "loss": None}) == "eval 2.0000"


def test_lines_where_there_is_no_terminal(capsys, monkeypatch):
    clock = iter([100.0, 101.0, 111.0, 112.0, 113.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with progress_display(True, total_steps=12, first_step=0) as show:
        show(EVENT | {"step": 1})  # too early for a line
        show(EVENT | {"step": 2})  # 11 s after the beginning, so 55 s for the other ten
        show(EVENT | {"step": 3, "eval_loss": 2.0})  # evaluations are always shown
        show(EVENT | {"step": 12})  # and the end
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "step 2/12  loss 1.2346  tok/s 1,234  55 s left",
        "step 3/12  loss 1.2346  eval 2.0000  tok/s 1,234  36 s left",
        "step 12/12  loss 1.2346  tok/s 1,234",
    ]


def test_quiet(capsys):
    with progress_display(False, total_steps=2, first_step=0) as show:
        show(EVENT)
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        with progress_display(True, total_steps=2, first_step=1, part=Part("prompt [a]", 3, 9)) as show:
            print("ours")
            show(EVENT)
    shown = io.BytesIO(os.read(controller, 65536)).getvalue().decode()
    os.close(controller)
    assert "5/9" in shown and "loss 1.2346" in shown and "prompt [a]" in shown
    assert capsys.readouterr().out == "ours\n"


def test_a_part_of_several_is_named_and_the_time_left_is_that_of_all(capsys, monkeypatch):
    clock = iter([100.0, 120.0, 121.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    part = Part("prompt 2 of 3, law", before=10, total=30)
    with progress_display(True, total_steps=10, first_step=0, part=part) as show:
        show(EVENT | {"step": 4})  # 5 s a step, and 16 of 30 remain
        show(EVENT | {"step": 10})
    assert capsys.readouterr().err.splitlines() == [
        "prompt 2 of 3, law: step 4/10  loss 1.2346  tok/s 1,234  80 s left in all",
        "prompt 2 of 3, law: step 10/10  loss 1.2346  tok/s 1,234  21 s left in all",
    ]
