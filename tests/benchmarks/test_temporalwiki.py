"""The table of months: its folder, and the whole command on a tiny model with an invented folder."""

from __future__ import annotations

import json

import pytest
from benchmarks.temporalwiki import command
from benchmarks.temporalwiki.periods import KINDS, digest, read_periods

from budwood.data.offsets import OffsetTokens
from budwood.data.synthetic import generate
from budwood.errors import DataError, UsageError
from budwood.models import load_base
from tests import tiny

PERIODS = ("0901-1001", "1001-1101")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, facts = tmp_path_factory.mktemp("months"), iter(generate(60, 0))
    for name in PERIODS:
        told = [next(facts) for _ in range(4)]
        for kind, some in zip(KINDS, (told[:3], told[2:])):
            rows = [{"subject": f.subject, "relation": f.relation, "object": f.object} for f in some]
            (folder / f"{name}_{kind}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": f.evidence}) for f in told))
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    tiny.save(tiny.llama(num_hidden_layers=8), folder)
    return load_base(str(folder), dtype="float32", device="cpu")


def run(data, base, folder, *more):
    options = f"--data {data} --base {base.source.folder} --dtype float32 --results {folder / 'r.jsonl'}"
    return command.main([*options.split(), "--work", str(folder / "work"), *more])


def test_periods_are_read_in_their_order_with_probes_for_the_object(data, base):
    tokens = OffsetTokens(base.tokenizer)
    periods = read_periods(data, tokens, most=2)
    assert [period.name for period in periods] == list(PERIODS)
    assert all(len(period.probes[kind]) == 2 and period.passages for period in periods for kind in KINDS)
    row = json.loads((data / f"{PERIODS[0]}_changed.jsonl").read_text().splitlines()[0])
    first = read_periods(data, tokens, most=9)[0].probes["changed"][0]
    assert [token for token in first.labels if token >= 0] == first.input_ids[-sum(t >= 0 for t in first.labels) :]
    assert base.tokenizer.decode(first.input_ids).endswith(f"relation: {row['relation']} ; object: {row['object']}")


def test_the_command_carries_the_adapter_on_and_goes_on_where_it_was(data, base, tmp_path, capsys):
    assert run(data, base, tmp_path, "--arms", "base", "uniform", "--minutes", "0") == 0
    assert not (tmp_path / "r.jsonl").exists()
    assert run(data, base, tmp_path, "--arms", "base", "uniform", "--learning-rate", "1e-2") == 0
    before = (tmp_path / "r.jsonl").read_text()
    assert run(data, base, tmp_path, "--arms", "base", "uniform", "entropy", "--learning-rate", "1e-2") == 0
    assert (tmp_path / "r.jsonl").read_text().startswith(before)
    found = {one["arm"]: one["periods"] for one in map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines())}
    assert list(found) == ["base", "uniform", "entropy"]
    assert all(list(one) == list(PERIODS) for one in found.values())
    assert all(len(one[name]["unchanged"]) == 3 and len(one[name]["changed"]) == 2 for one in found.values()
               for name in PERIODS)  # fmt: skip
    assert found["base"] != found["uniform"] != found["entropy"]
    capsys.readouterr()
    assert command.main(["--report", "--results", str(tmp_path / "r.jsonl")]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].count("changed") == 4 and len(rows) == 5
    assert rows[-1].startswith("| entropy | 0 |") and rows[-1].count("[") == 4


def test_the_second_month_begins_where_the_first_ended(data, base, tmp_path):
    """With the months' texts swapped nothing else would tell; so what is known after both depends on the first."""
    periods = read_periods(data, OffsetTokens(base.tokenizer), most=9)
    schedule = command.Schedule(epochs=1, learning_rate=1e-2)
    both = command._compute(base, periods, "uniform", schedule, tmp_path, 0)["periods"]
    alone = command._compute(base, periods[1:], "uniform", schedule, tmp_path, 0)["periods"]
    assert both[PERIODS[1]] != alone[PERIODS[1]]


def test_without_texts_only_the_base_is_measured(data, base, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in data.glob("*_*.jsonl"):
        (bare / path.name).write_text(path.read_text())
    assert run(bare, base, tmp_path) == DataError.exit_code
    assert "--arms base" in capsys.readouterr().err
    assert run(bare, base, tmp_path, "--arms", "base") == 0
    assert digest(bare) != digest(data)


def test_what_is_wrong_is_said(data, base, tmp_path, capsys):
    tokens = OffsetTokens(base.tokenizer)
    with pytest.raises(DataError, match="no periods"):
        read_periods(tmp_path, tokens, most=1)
    (tmp_path / "x_changed.jsonl").write_text('{"subject": "a", "relation": "b"}')
    (tmp_path / "x_unchanged.jsonl").write_text('{"subject": "a", "relation": "b", "object": "c"}')
    with pytest.raises(DataError, match=r"line 1.*no fact"):
        read_periods(tmp_path, tokens, most=1)
    assert run(data, base, tmp_path, "--arms", "unifrm") == UsageError.exit_code
    assert "uniform" in capsys.readouterr().err
    assert command.main([]) == UsageError.exit_code
    assert command.report([]) == "no finished cells"
