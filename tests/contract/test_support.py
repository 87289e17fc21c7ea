"""docs/support.md says which base can do what; each ✓ is done here on a tiny model, each "no" is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from budwood import peft
from budwood._exports import EXPORTS
from budwood._plan import plan
from budwood._request import Request
from budwood.errors import BudwoodError
from budwood.export import merged_probe, portable_probe, verify
from budwood.export.dequantised import GAP
from budwood.models import empty_model, load_base, locate
from budwood.models.quantisation import STORED_PACKAGES, SUFFIX_PACKAGES
from budwood.run import open_run
from budwood.storage import read_json, write_json
from budwood.tuning.attach import attach
from budwood.tuning.registry import find_tuner
from tests.models import gguf_files, quantised_folders

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])
UNTESTED = "not tested here"


def table() -> dict[str, dict[str, str]]:
    """The page's table: base -> column -> cell."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def quantised(kind: str) -> Callable[[Path], str]:
    return lambda folder: quantised_folders.made(kind, folder)


def gguf_file(folder: Path) -> str:
    return str(gguf_files.write(folder.with_suffix(".gguf"), gguf_files.llama(), quantised=True))


def suffix_on_stored(folder: Path) -> str:
    return quantised_folders.made("compressed-tensors", folder) + "+nf4"


BASES: dict[str, Callable[[Path], str]] = {
    "dense: a folder or a hub model": quantised_folders.plain,
    "GGUF file": gguf_file,
    **{f"`+{suffix}`": quantised(f"+{suffix}") for suffix in SUFFIX_PACKAGES},
    **{f"stored: {kind}": quantised(kind) for kind in STORED_PACKAGES if kind in quantised_folders.MAKERS},
    "any suffix on a stored one": suffix_on_stored,
}
CELLS = [(base, column, cell) for base, row in table().items() for column, cell in row.items()]


def cells(mark: str) -> list[tuple[str, str, str]]:
    return [cell for cell in CELLS if cell[2].startswith(mark)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Callable[[str], str]:
    """The reference of each base, made once."""
    made: dict[str, str] = {}

    def get(base: str) -> str:
        if base not in made:
            made[base] = BASES[base](tmp_path_factory.mktemp("base") / "base")
        return made[base]

    return get


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    """Answer what plain transformers is asked without a second process; `budwood` is imported in this one."""
    probes = {str(Path(probe.__file__)): probe for probe in (merged_probe, portable_probe)}
    elsewhere = verify._run

    def run(command: list[str], timeout_s: float) -> str:
        probe = probes.get(command[-2])
        if probe is None:  # llama.cpp
            return elsewhere(command, timeout_s)
        probe.main(command[-1])
        result = Path(read_json(command[-1])["result"])
        write_json(result, read_json(result) | {"imported": []})
        return ""

    monkeypatch.setattr(verify, "_run", run)


def trained(reference: str, tuner: str) -> nn.Module:
    """The base with a tuner after a few steps, evaluated in between."""
    peft.register()
    found = find_tuner(tuner)
    settings = found.settings(**{"rank": 4, "targets": ["q", "down"]})
    model = attach(load_base(reference, device="cpu", dtype="float32").model, found, settings, seed=0)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-2)
    for _ in range(3):
        model.train()(input_ids=IDS, labels=IDS).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        loss(model)
    return model


def loss(model: nn.Module) -> float:
    with torch.no_grad():
        return model.eval()(input_ids=IDS, labels=IDS).loss.item()


def test_the_page_is_complete():
    assert set(table()) == {*BASES, "stored: gptq", "stored: awq"}
    columns = {"train GIFT", "train LoRA", *(f"export {kind}" for kind in EXPORTS)}
    for row in table().values():
        assert columns >= set(row) and len(row) == 5
    remarks = set(re.findall(r"^\*\*(\w+)\*\*", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    for base, column, cell in CELLS:
        assert cell == UNTESTED or re.fullmatch(r"✓( \w+)?|no: .+", cell), (base, column)
        assert cell.removeprefix("✓").strip() in remarks | {""} or not cell.startswith("✓"), (base, column)
    assert {base for base, _, cell in CELLS if cell == UNTESTED} == {"stored: gptq", "stored: awq"}


@pytest.mark.parametrize("base", dict.fromkeys(base for base, _, cell in CELLS if cell == "✓ dense"))
def test_what_becomes_dense_is_planned_with_the_memory_of_a_dense_base(base, reference):
    found, model = plan(Request(reference(base))), load_base(reference(base), device="cpu").model
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    assert found["memory_mib"]["base"] == pytest.approx(size / 2**20, abs=0.06)


@pytest.mark.parametrize(("base", "column", "cell"), [c for c in cells("✓") if c[1].startswith("train")])
def test_what_can_be_trained_is(base, column, cell, reference):
    before = loss(load_base(reference(base), device="cpu", dtype="float32").model)
    assert loss(trained(reference(base), column.split()[1].lower())) < before - 0.05


@pytest.mark.parametrize(("base", "column", "cell"), [c for c in cells("✓") if c[1].startswith("export")])
def test_what_can_be_exported_is_exported_and_verified(base, column, cell, reference, tmp_path):
    trained(reference(base), "gift").save_pretrained(tmp_path / "adapter")
    kind = column.split()[1]
    out = tmp_path / ("out.gguf" if kind == "gguf" else "out")
    checks = open_run(tmp_path / "adapter", base=reference(base)).export(kind, out, dtype="float32").checks
    assert out.exists()
    assert kind == "lora" or checks
    gaps = [check for check in checks if check.name == GAP]
    assert bool(gaps) == ("gap" in cell)
    for gap in gaps:
        assert f"{gap.value:.3g}" in (out / "README.md").read_text().replace("\\", "")


@pytest.mark.parametrize(("base", "column", "cell"), cells("no: "))
def test_what_is_refused_says_why(base, column, cell, reference):
    source = locate(reference(base))
    for load in (lambda: load_base(source, device="cpu"), lambda: empty_model(source)):
        with pytest.raises(BudwoodError, match=cell.removeprefix("no: ")):
            load()
