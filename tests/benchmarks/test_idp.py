"""The whole table on tiny models: every system, restartable, and figures that follow from the lines alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from benchmarks._table import read
from benchmarks.idp import command
from benchmarks.idp.attempt import Attempt
from benchmarks.idp.report import REFERENCE, rows_of
from benchmarks.idp.setting import UNSEEN, Setting
from benchmarks.idp.systems import SYSTEMS

from benchmarks import idp_pictures
from tests import tiny
from tests.methods.idp import texts


@pytest.fixture(scope="module")
def arguments(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("benchmark")
    whole, damaged = tiny.llama(), tiny.llama()
    with torch.no_grad():
        for layer in damaged.model.layers:
            layer.mlp.down_proj.weight.mul_(0.2)
    questions = [{"question": "the sea", "choices": ["has waves", "is a court"], "answer": 0, "task": "sea"}] * 3
    (folder / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    (apart := folder / "apart").mkdir()
    return [
        "--model", str(tiny.save(damaged, folder / "damaged")),
        "--uncompressed", str(tiny.save(whole, folder / "whole")),
        "--text", *map(str, texts.write(folder)), "--unseen", str(texts.write(apart, kinds=["sea"])[0]),
        "--questions", str(folder / "questions.jsonl"),
        "--tokens", "4", "--steps", "4", "--search-steps", "2", "--scored", "12", "--seeds", "1",
        "--dtype", "float32", "--work", str(folder / "work"), "--results", str(folder / "results.jsonl"),
    ]  # fmt: skip


def results(arguments: list[str]) -> list[dict]:
    return list(read(command.Path(arguments[arguments.index("--results") + 1])).values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")
def test_every_system_is_computed_once_reported_and_drawn(arguments, capsys, monkeypatch, tmp_path):
    assert command.main(arguments) == 0
    lines = results(arguments)
    assert {line["system"] for line in lines} == set(SYSTEMS)
    told = capsys.readouterr().out
    assert all(f"| {name} |" in told for name in SYSTEMS if name not in ("bank", "apart", "paper's lengths"))
    assert "| paper's lengths, paper |" in told
    assert {line["domains"][-1] for line in lines} == {UNSEEN} and "unseen" in told
    assert f"| {REFERENCE} |" in told and "chosen by paper" in told
    monkeypatch.setattr(command, "compute", lambda *_: pytest.fail("a finished cell was computed again"))
    assert command.main(arguments) == 0
    rows = {row.name: row for row in rows_of(lines)}
    bank = next(line for line in lines if line["system"] == "bank")
    alone = np.array(list(bank["alone"].values()))
    np.testing.assert_allclose(rows["bank, oracle"].nll[0], alone.min(axis=0))
    np.testing.assert_allclose(rows["bank, random"].nll[0], alone.mean(axis=0))
    np.testing.assert_allclose(rows[REFERENCE].nll[0], bank["nll"], atol=1e-3)
    assert rows["mixed, sum n"].parameters == rows["concatenated"].parameters == 12 * 32
    assert rows["bank, logit ensemble"].nll.shape == (1, 16)  # 12 of the domains and a third as many of the control
    assert rows["attempt"].parameters == 4 * 32 + 2 * 32 * 100 + 2 * 32
    monkeypatch.setattr(Setting, "learn", lambda *_: pytest.fail("what is kept was trained again"))
    assert idp_pictures.main([*arguments, "--out", str(tmp_path)]) == 0
    kinds = ("lengths", "short-and-long", "choices", "margins", "similarity")
    names = {f"{lines[0]['table']}-{kind}.svg" for kind in kinds} | {f"{lines[0]['table']}-similarity.json"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_mistakes_are_said(capsys):
    assert command.main(["--model", "x"]) == 2
    assert command.main(["--model", "x", "--uncompressed", "y", "--text", "z", "--only", "magic"]) == 2
    assert "there is no system 'magic'" in capsys.readouterr().err


def test_a_mixture_of_one_prompt_and_a_target_of_zero_is_that_prompt():
    base = tiny.llama()
    vectors = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    mixture = Attempt(base, [vectors], seed=0)
    with torch.no_grad():
        mixture.target.zero_()
        ids = torch.tensor([[5, 9, 200, 31], [8, 7, 120, 0]])
        mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
        found = mixture(ids, mask).logits[:, 5:]
        for row, length in enumerate((4, 3)):
            joined = torch.cat([vectors, base.get_input_embeddings()(ids[row, :length])])[None]
            wanted = base(inputs_embeds=joined).logits[0, 5:]
            assert torch.allclose(found[row, :length], wanted, atol=1e-4)


def test_the_mixture_depends_on_the_first_half_alone():
    sources = [torch.randn(3, 32, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    mixture = Attempt(tiny.llama(), sources, seed=0)
    mask = torch.ones(1, 6, dtype=torch.long)
    with torch.no_grad():
        first = mixture(torch.tensor([[5, 9, 200, 31, 7, 8]]), mask).logits[:, : 3 + 3]
        same = mixture(torch.tensor([[5, 9, 200, 90, 91, 92]]), mask).logits[:, : 3 + 3]
        other = mixture(torch.tensor([[5, 9, 100, 31, 7, 8]]), mask).logits[:, :3]
    assert torch.equal(first, same) and not torch.equal(first[:, :3], other)
