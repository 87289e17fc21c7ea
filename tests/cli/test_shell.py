"""What each failure becomes, where output goes, and what `--help` says."""

from __future__ import annotations

import logging
import re
import shlex
import sys
import warnings

import pytest
import typer.main

from budwood import errors
from budwood.cli._app import app
from budwood.cli._process import is_verbose, wants_json
from tests.cli.conftest import COMMANDS, only_object

KINDS = [
    errors.UsageError,
    errors.ConfigError,
    errors.DataError,
    errors.BaseMismatchError,
    errors.NotSupportedError,
    errors.StorageError,
    errors.NonFiniteError,
    errors.OutOfMemoryError,
    errors.VerificationError,
    errors.InterruptedRunError,
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_known_error_keeps_its_exit_code_and_its_three_parts(budwood_cli, library, kind):
    library.ERROR.append(kind("got this", wanted="that", action="do so"))
    result = budwood_cli("doctor")
    assert result.exit_code == kind.exit_code
    assert result.stderr.endswith("error: got this\n  wanted: that\n  to do:  do so\n")
    assert not result.stdout
    assert "Traceback" not in result.stderr
    result = budwood_cli("doctor", "--json")
    assert result.exit_code == kind.exit_code
    assert only_object(result.stdout) == {"error": library.ERROR[0].to_dict()}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_every_command_reports_errors_as_one_object(budwood_cli, library, words):
    library.ERROR.append(errors.ModelError("no such model"))
    result = budwood_cli(*words, "--json")
    assert result.exit_code == 2
    assert only_object(result.stdout)["error"]["got"] == "no such model"


def test_an_unforeseen_exception_is_a_bug_of_ours(budwood_cli, library):
    library.ERROR.append(KeyError("phi"))
    result = budwood_cli("doctor")
    assert result.exit_code == 1
    assert "this is a bug of budwood: KeyError: 'phi'" in result.stderr
    assert "with -v for the traceback" in result.stderr
    assert "Traceback" not in result.stderr
    error = only_object(budwood_cli("doctor", "--json").stdout)["error"]
    assert (error["type"], error["exit_code"]) == ("InternalError", 1)


@pytest.mark.parametrize("flag", ["-v", "--verbose", "-qv", "-vv"])
def test_verbose_shows_the_traceback_of_a_bug(budwood_cli, library, flag):
    library.ERROR.append(KeyError("phi"))
    result = budwood_cli("doctor", flag)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "stand_ins.py" in result.stderr


def test_control_c_is_130(budwood_cli, library):
    library.ERROR.append(KeyboardInterrupt())
    result = budwood_cli("doctor", "--json")
    assert result.exit_code == 130
    assert only_object(result.stdout)["error"]["exit_code"] == 130


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["adpat"], "did you mean 'adapt'?"),
        (["data", "chekc"], "did you mean 'check'?"),
        (["adapt", "smollm2", "--exmaples", "f"], "did you mean '--examples'?"),
        (["verify", "runs/a", "--protable"], "did you mean '--portable'?"),
        (["export", "runs/a", "--to", "lora"], "--out"),
        (["adapt", "smollm2", "--seed", "one"], "--seed"),
        (["adapt", "smollm2", "--seed"], "--seed"),
        (["verify", "a", "b"], "b"),
        (["generate", "runs/a"], "--prompt"),
        (["eval", "runs/a", "--rows", "f", "--limit", "0"], "--limit"),
        (["data"], "Missing command"),
        (["doctor", "-x"], "-x"),
    ],
)
def test_a_usage_error_is_2_with_the_nearest_name(budwood_cli, library, words, told):
    result = budwood_cli(*words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "--help`" in result.stderr
    assert not result.stdout
    assert not library.CALLS
    error = only_object(budwood_cli(*words, "--json").stdout)["error"]
    assert (error["type"], error["exit_code"]) == ("UsageError", 2)


def test_words_after_two_dashes_are_no_flags():
    assert wants_json(["doctor", "--json"])
    assert not wants_json(["adapt", "--", "--json"])
    assert not wants_json(["generate", "--prompt", "say --json"])
    assert is_verbose(["doctor", "-qv"])
    assert not is_verbose(["export", "-ov", "--", "-v"])


# logs


@pytest.mark.parametrize(
    ("flags", "ours", "warning", "theirs"),
    [([], True, False, False), (["-q"], False, False, False), (["-v"], True, True, True)],
)
def test_logs_by_verbosity(budwood_cli, flags, ours, warning, theirs):
    told = budwood_cli("doctor", *flags).stderr
    assert ("note of budwood" in told) is ours
    assert ("warning of elsewhere" in told) is warning
    assert ("note of elsewhere" in told) is theirs


def test_logging_is_put_back(budwood_cli):
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    levels = root.level, logging.getLogger("budwood").level
    budwood_cli("doctor", "-v")
    assert root.handlers == before
    assert (root.level, logging.getLogger("budwood").level) == levels
    assert warnings.showwarning.__module__ != "logging"


# help


def _commands() -> dict[str, str]:
    """Return the help text of every command, by its words."""
    root = typer.main.get_command(app)
    found = {}
    for name, command in root.commands.items():
        for inner, leaf in getattr(command, "commands", {"": command}).items():
            found[f"{name} {inner}".strip()] = leaf.help
    return found


def test_the_list_of_commands_is_complete():
    assert set(_commands()) == {name for name in COMMANDS if "--" not in name}


@pytest.mark.parametrize(("name", "text"), _commands().items())
def test_help_has_one_line_of_purpose_and_an_example_that_works(budwood_cli, name, text):
    result = budwood_cli(*name.split(), "--help")
    assert result.exit_code == 0
    assert len(text.split("\n\n")[0]) <= 66, "the list of commands would cut it"
    for flag in ("--json", "--quiet", "--verbose", "--help"):
        assert flag in result.stdout
    example = re.search(r"Example:\n +budwood (.*)", result.stdout)[1]
    words = shlex.split(example.partition(" > ")[0])
    assert words[: len(name.split())] == name.split()
    assert budwood_cli(*words).exit_code == 0


def test_bare_budwood_and_help_list_the_commands_uncut(budwood_cli):
    for words in ([], ["--help"], ["-h"]):
        result = budwood_cli(*words)
        assert result.exit_code == 0
        assert "Teach a model" in result.stdout
        assert "..." not in result.stdout.replace("[ARGS]...", "")


def test_version(budwood_cli):
    assert re.fullmatch(r"budwood \d+\.\d+\.\d+\n", budwood_cli("--version").stdout)


def test_no_command_prompts():
    root = typer.main.get_command(app)
    for group in (root, root.commands["data"], root.commands["config"]):
        for command in group.commands.values():
            assert all(not getattr(parameter, "prompt", None) for parameter in command.params)


def test_standard_output_is_put_back(budwood_cli):
    before = sys.stdout
    budwood_cli("doctor")
    assert sys.stdout is before
