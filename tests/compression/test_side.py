"""llm-compressor at arm's length: what it is asked, what becomes of its failures, and, where it is, that we agree."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from budwood import _compress
from budwood.compression import side
from budwood.compression.settings import Compression, Pattern
from budwood.errors import NotSupportedError
from budwood.models import load_base
from tests import tiny

MADE = side.environment()  # of the user's cache; in a test it is another, empty one
SETTINGS = Compression("sparsegpt", pattern=Pattern(1, 4)).settled(has_text=True)


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """An environment whose Python copies what it is asked, or fails if the source is called `broken`."""
    place = tmp_path / "environment"
    (place / "bin").mkdir(parents=True)
    (place / "ready").touch()
    program = tmp_path / "program.py"
    program.write_text(
        "import json, pathlib, shutil, sys\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "request = json.loads((place / 'request.json').read_text())\n"
        "if request['source'].endswith('broken'): sys.exit('Traceback\\nValueError: no such model\\n')\n"
        "shutil.copytree(place, request['out'], dirs_exist_ok=True)\n"
    )
    (place / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(side, "environment", lambda: place)
    monkeypatch.setattr(side, "PROGRAM", program)
    return place


def test_without_the_environment_the_way_to_make_it_is_told():
    with pytest.raises(NotSupportedError, match=r"python scripts/side_environment\.py"):
        side.check(SETTINGS)


def test_a_half_made_environment_is_none(stand_in):
    side.check(SETTINGS)
    (stand_in / "ready").unlink()
    with pytest.raises(NotSupportedError, match="is not installed"):
        side.check(SETTINGS)


@pytest.mark.parametrize("settings", [Compression("rtn", bits=4), Compression("magnitude", sparsity=0.5)])
def test_what_needs_no_text_is_not_asked_of_it(stand_in, settings):
    with pytest.raises(NotSupportedError, match="one of gptq, sparsegpt, wanda"):
        side.check(settings.settled(has_text=True))


def test_settings_and_windows_arrive_as_files(stand_in, tmp_path):
    windows, out = torch.arange(12).reshape(3, 4), tmp_path / "out"
    side.run(SETTINGS, tmp_path / "base", windows, out, ignore=["lm_head"])
    assert torch.equal(load_file(out / "windows.safetensors")["input_ids"], windows)
    request = json.loads((out / "request.json").read_text())
    assert request["source"] == str(tmp_path / "base") and request["ignore"] == ["lm_head"]
    assert request["sparsity"] == 0.75 and request["dropped_of"] == "3:4" and request["dtype"] == "float32"


def test_its_failure_is_told_by_its_last_line(stand_in, tmp_path):
    with pytest.raises(NotSupportedError, match="llm-compressor failed: ValueError: no such model"):
        side.run(SETTINGS, tmp_path / "broken", torch.zeros(1, 4), tmp_path / "out", ignore=[])


@pytest.mark.slow
@pytest.mark.skipif(not (MADE / "ready").exists(), reason="scripts/side_environment.py has not been run")
@pytest.mark.parametrize(
    "settings",
    [
        Compression("gptq", bits=3, group=16, symmetric=True, act_order=True, samples=16, length=32),
        Compression("sparsegpt", sparsity=0.5, samples=16, length=32),
        Compression("wanda", pattern=Pattern(1, 4), samples=16, length=32),
    ],
    ids=["gptq", "sparsegpt", "wanda"],
)
def test_both_engines_make_the_same_weights(tmp_path, monkeypatch, settings):
    """Of the first block, whose inputs are the same; where sums differ in the last bit a weight may go either way."""
    monkeypatch.setattr(side, "environment", lambda: MADE)
    folder = tiny.save(tiny.llama(), tmp_path / "base")
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"The word number {i} is here." for i in range(200)), encoding="utf-8")
    weights = []
    for engine in _compress.ENGINES:
        found = _compress.compress(str(folder), settings, [text], out=tmp_path / engine, engine=engine, progress=False)
        assert found["engine"] == engine and found["nll"]["after"] > 0
        weights.append(load_base(found["folder"], dtype="float32").model.model.layers[0].mlp.up_proj.weight)
    assert ((weights[0] - weights[1]).abs() < 2e-3).float().mean() > 0.97
