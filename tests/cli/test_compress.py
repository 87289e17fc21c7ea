"""`budwood compress`: its flags become settings, and what came back fits a screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from budwood.compression.settings import Compression, Pattern
from tests.cli import stand_ins as stand_in
from tests.cli.conftest import only_object
from tests.cli.stand_ins import last


def test_every_flag_is_passed(budwood_cli):
    grid = "--bits 3 --group 32 --symmetric --method gptq --act-order --damping 0.1"
    text = "--calibration a.md --calibration notes --samples 9 --length 64 --seed 7"
    rest = "--dtype bfloat16 --engine llm-compressor --force -q -o models/x"
    assert budwood_cli(*f"compress org/name@main {grid} {text} {rest}".split()).exit_code == 0
    assert last("compress") == {
        "model": "org/name@main",
        "settings": Compression(
            "gptq",
            bits=3,
            group=32,
            symmetric=True,
            act_order=True,
            damping=0.1,
            dtype="bfloat16",
            samples=9,
            length=64,
            seed=7,
        ),
        "calibration": [Path("a.md"), Path("notes")],
        "out": Path("models/x"),
        "engine": "llm-compressor",
        "force": True,
        "progress": False,
    }


def test_what_is_not_given_is_left_to_the_library(budwood_cli):
    assert budwood_cli("compress", "smollm2", "--pattern", "2:4", "-o", "x").exit_code == 0
    assert last("compress")["settings"] == Compression(pattern=Pattern(2, 4))
    assert last("compress")["calibration"] == [] and last("compress")["progress"] is True


def test_dry_run_only_forecasts(budwood_cli):
    result = budwood_cli("compress", "smollm2", "--bits", "3", "-o", "models/x", "--dry-run")
    assert [name for name, _ in stand_in.CALLS] == ["forecast"]
    for part in ("106,168,320 of 134,515,008", "3.297 there", "96 MiB", "not written: this is a dry run"):
        assert part in result.stdout


def test_the_answer_is_on_one_screen(budwood_cli):
    lines = budwood_cli("compress", "smollm2", "--bits", "3", "-o", "models/x").stdout.splitlines()
    assert len(lines) <= 16
    text = "\n".join(lines)
    for part in (
        "models/[x]: smollm2 with gptq, 3 bits, groups of 64",
        "513 MiB of plain float32 weights",
        "0.19 in the mean of the layers",
        "0.45, model.layers.0.mlp.down_proj",
        "2.5 before, 3.25 after; nats a token, over 3,570 tokens: a small sample",
        "budwood adapt 'models/[x]'",
    ):
        assert part in text, part


def test_a_method_that_does_not_look_at_the_text_says_so(budwood_cli, library, monkeypatch):
    words = ("compress", "smollm2", "--bits", "3", "--calibration", "a.md", "-o", "models/x")
    assert "; only to measure" not in budwood_cli(*words).stdout
    monkeypatch.setattr(library, "COMPRESSED", library.COMPRESSED | {"method": "rtn"})
    shown = budwood_cli(*words).stdout
    assert "only to measure: rtn does not look at it" in shown and "calibrated" not in shown


def test_json_has_every_layer_and_quiet_the_folder(budwood_cli):
    words = ("compress", "smollm2", "--bits", "3", "-o", "models/x")
    assert only_object(budwood_cli(*words, "--json").stdout)["layers"][0]["error"] == 0.45
    assert budwood_cli(*words, "-q").stdout == "models/[x]\n"


@pytest.mark.parametrize("words", [["--pattern", "4:2"], ["--pattern", "half"]])
def test_a_pattern_that_is_none_is_a_usage_error(budwood_cli, words):
    result = budwood_cli("compress", "smollm2", *words, "-o", "x")
    assert result.exit_code == 2 and "KEPT:OF" in result.stderr and not stand_in.CALLS
