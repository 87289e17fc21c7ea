"""`budwood chat`: through a pipe, and in a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from budwood import errors
from budwood.cli._app import app
from tests.cli.conftest import only_object
from tests.cli.stand_ins import last


@pytest.fixture
def chat(library):
    def run(lines: str, *words: str) -> Result:
        return CliRunner().invoke(app, ["chat", "runs/a", *words], input=lines, catch_exceptions=False)

    return run


def test_chat_passes_every_flag(chat):
    words = "--base b --system S --max-new-tokens 9 --temperature 0.5 --seed 4 --force"
    assert chat("", *words.split()).exit_code == 0
    assert last("open_conversation") == {
        "path": Path("runs/a"),
        "base": "b",
        "system": "S",
        "max_new_tokens": 9,
        "temperature": 0.5,
        "seed": 4,
        "force": True,
    }


def test_a_line_in_is_a_line_out_without_noise(chat):
    result = chat("one\n\ntwo  \n/reset\nthree\n")
    assert result.stdout == "1: one\\n[b]!\n\n2: two\\n[b]!\n\n1: three\\n[b]!\n"
    assert result.stderr.count("stray print") == 4  # when it was opened, and at each turn


def test_exit_ends_and_what_follows_is_not_asked(chat):
    assert chat("one\n/exit\ntwo\n").stdout.count("\n") == 1


def test_json_is_all_turns_in_one_object(chat):
    found = only_object(chat("one\n\ntwo", "--json").stdout)
    assert found["turns"][1] == {"user": "", "answer": "", "tokens": 0, "ended": True}
    assert found["turns"][2] == {"user": "two", "answer": "2: two\n[b]!", "tokens": 2, "ended": True}
    assert only_object(chat("", "--json").stdout) == {"turns": []}


def test_a_turn_that_fails_ends_a_pipe_after_the_answers_before_it(chat):
    result = chat("one\ntoo long\nthree\n")
    assert result.exit_code == 2
    assert result.stdout == "1: one\\n[b]!\n" and "300 tokens" in result.stderr
    assert "300 tokens" in only_object(chat("too long\n", "--json").stdout)["error"]["got"]


def test_an_error_at_the_start_is_reported_like_others(chat, library):
    library.ERROR.append(errors.ModelError("no such model"))
    result = chat("one\n", "--json")
    assert (result.exit_code, only_object(result.stdout)["error"]["got"]) == (2, "no such model")


def test_control_c_between_lines_is_130(chat, library):
    library.ERROR.clear()
    lines = chat  # the first call opens the conversation; the interruption comes with the turn

    def interrupted(self, text, on_text):
        raise KeyboardInterrupt

    original, library.Conversation.ask = library.Conversation.ask, interrupted
    try:
        assert lines("one\n").exit_code == 130
        assert lines("one\n", "--json").exit_code == 130
    finally:
        library.Conversation.ask = original


def in_terminal(typed: str, *words: str) -> tuple[int, str, str]:
    """Run the command with a terminal as standard input and error; return exit code, screen and standard output."""
    code = (
        "import sys; from tests.cli import stand_ins; stand_ins.install();"
        f"from budwood.cli._app import app; sys.argv = ['budwood', 'chat', 'runs/a', *{list(words)!r}]; app()"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    os.write(ours, typed.encode())
    screen = b""
    while True:
        try:
            screen += os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
    answer = process.communicate(timeout=60)[0]
    os.close(ours)
    return process.returncode, screen.decode().replace("\r\n", "\n"), answer.decode()


def test_a_terminal_shows_answers_as_they_come_and_ctrl_d_ends():
    code, screen, answer = in_terminal("one\ntoo long\n/reset\ntwo\n\x04", "--json")
    assert code == 0
    assert "/reset begins anew" in screen and "> " in screen
    for part in ("1: one\n[b]!", "300 tokens", "1: two\n[b]!"):
        assert part in screen
    assert [turn["user"] for turn in only_object(answer)["turns"]] == ["one", "two"]


def test_a_terminal_leaves_with_exit_and_standard_output_stays_clean():
    code, screen, answer = in_terminal("one\n/exit\n", "-q")
    assert (code, answer) == (0, "")
    assert "1: one" in screen and "begins anew" not in screen
