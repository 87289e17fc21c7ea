"""The real process: what is imported, what the environment holds, pipes, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.cli.conftest import COMMANDS, only_object

ROOT = Path(__file__).resolve().parents[2]
WITH_STAND_INS = """
import sys
sys.path.insert(0, {root!r})
from tests.cli import stand_ins
stand_ins.install()
{before}
from budwood.cli import main
main()
"""
HEAVY = ("torch", "transformers", "peft", "datasets", "numpy", "yaml", "rich")


def budwood_process(tmp_path, *words: str, before: str = "", stdout: int = subprocess.PIPE) -> subprocess.Popen:
    script = WITH_STAND_INS.format(root=str(ROOT), before=before)
    return subprocess.Popen(
        [sys.executable, "-c", script, *words],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_entry_point():
    [found] = entry_points(group="console_scripts", name="budwood")
    assert found.value == "budwood.cli:main"


@pytest.mark.parametrize("words", [["--help"], ["adapt", "--help"], ["--version"], ["adpat"], []])
def test_help_loads_nothing_heavy(words):
    script = f"import sys; sys.argv[1:] = {words!r}; from budwood.cli import main\ntry: main()\nfinally: "
    script += f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("[]\n")


@pytest.mark.parametrize("name", ["doctor", "adapt", "verify"])
def test_json_stays_pure_whatever_children_write(tmp_path, name):
    told, noise = budwood_process(tmp_path, *COMMANDS[name], "--json").communicate()
    only_object(told)
    for stray in ("stray print", "stray write", "stray child"):
        assert stray in noise


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 4)])
def test_a_reader_that_leaves_changes_no_exit_code(tmp_path, ok, code):
    big = f"stand_ins.VERIFIED.append({ok}); stand_ins.Report.to_dict = lambda self: "
    big += "{'ok': self.ok, 'checks': [{'name': 'x' * 90, 'ok': self.ok}] * 200}"
    with budwood_process(tmp_path, "verify", "runs/a", before=big) as process:
        process.stdout.close()
        noise = process.stderr.read()
    assert process.returncode == code
    assert "Traceback" not in noise and "BrokenPipe" not in noise


def test_a_reader_of_the_help_that_leaves(tmp_path):
    with budwood_process(tmp_path, "--help") as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_a_reader_of_the_progress_that_leaves(tmp_path):
    polite = "stand_ins.os.write = stand_ins.os.system = lambda *_: None"
    with budwood_process(tmp_path, *COMMANDS["adapt"], before=polite) as process:
        process.stderr.close()
        assert "runs/made up" in process.stdout.read()
    assert process.returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
def test_a_closed_standard_output(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(WITH_STAND_INS.format(root=str(ROOT), before=""))
    done = subprocess.run(["sh", "-c", f"exec '{sys.executable}' run.py doctor >&-"], cwd=tmp_path, check=False)
    assert done.returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_control_c_in_the_middle(tmp_path):
    sleepy = (
        "import time; stand_ins.schema = lambda: print('ready', flush=True) or time.sleep(600)\nstand_ins.install()"
    )
    sleepy = sleepy.replace("stand_ins.install()", "sys.modules['budwood.recipe'].schema = stand_ins.schema")
    process = budwood_process(tmp_path, "config", "schema", "--json", before=sleepy)
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate()
    assert process.returncode == 130
    assert only_object(told)["error"]["type"] == "InterruptedRunError"


def environment_of(words: list[str], environment: dict[str, str]) -> dict[str, str]:
    script = (
        "import json, os; from budwood.cli._process import prepare; prepare(); print(json.dumps(dict(os.environ)))"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], env=environment, capture_output=True, check=True)
    return only_object(done.stdout)


NAMES = {"OMP_WAIT_POLICY", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS"}


def test_the_environment_has_defaults():
    bare = {name: value for name, value in os.environ.items() if name not in NAMES}
    quiet, verbose = environment_of(["doctor"], bare), environment_of(["doctor", "-v"], bare)
    assert (quiet["OMP_WAIT_POLICY"], quiet["TOKENIZERS_PARALLELISM"]) == ("passive", "false")
    assert (quiet["TRANSFORMERS_VERBOSITY"], quiet["HF_HUB_DISABLE_PROGRESS_BARS"]) == ("error", "1")
    assert verbose["OMP_WAIT_POLICY"] == "passive"
    assert "TRANSFORMERS_VERBOSITY" not in verbose


def test_what_the_user_has_set_stays():
    kept = environment_of(["doctor"], os.environ | {"OMP_WAIT_POLICY": "active", "TRANSFORMERS_VERBOSITY": "debug"})
    assert (kept["OMP_WAIT_POLICY"], kept["TRANSFORMERS_VERBOSITY"]) == ("active", "debug")


def test_a_character_that_the_terminal_lacks_is_escaped(tmp_path):
    process = budwood_process(tmp_path, "methods", before="sys.stdout = open(1, 'w', encoding='ascii', closefd=False)")
    told, _ = process.communicate()
    assert process.returncode == 0
    assert r"[\u03c6]" in told
