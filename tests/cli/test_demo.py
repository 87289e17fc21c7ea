"""The demo: rows made, trained on, measured on others, verified."""

from __future__ import annotations

import json
from pathlib import Path

from budwood.evidence import Examples
from tests.cli.stand_ins import last


def test_demo_measures_on_orders_that_were_not_trained_on(budwood_cli, tmp_path):
    result = budwood_cli("demo", "-o", "d", "--seed", "5")
    assert result.exit_code == 0
    given, measured = last("adapt"), last("evaluate")
    assert (given["model"], given["seed"], given["out"]) == ("smollm2", 5, Path("d/run"))
    assert given["evidence"] == Examples(Path("d/train.jsonl"))
    assert (measured["path"], measured["rows"]) == (Path("d/run"), Path("d/test.jsonl"))
    train, test = (
        [json.loads(line)["prompt"] for line in (tmp_path / "d" / name).read_text().splitlines()]
        for name in ("train.jsonl", "test.jsonl")
    )
    assert (len(train), len(test)) == (500, 100)
    assert not set(train) & set(test)
    for shown in ("0.955", "2,442,240", "147,456", "verified", "budwood export d/run --to lora"):
        assert shown in result.stdout


def test_demo_writes_beside_an_older_one(budwood_cli, tmp_path):
    for place in ("runs/demo", "runs/demo-2", "runs/demo-3"):
        assert budwood_cli("demo").exit_code == 0
        assert (tmp_path / place / "test.jsonl").is_file()
        assert last("adapt")["out"] == Path(place) / "run"


def test_demo_hyperparameters_are_one_dict(budwood_cli, monkeypatch):
    monkeypatch.setattr("budwood.cli.demo.HYPERPARAMETERS", {"training.epochs": 1})
    budwood_cli("demo")
    assert last("adapt")["overrides"] == {"training.epochs": 1}


def test_demo_without_its_orders_says_so(budwood_cli, monkeypatch, tmp_path):
    monkeypatch.setattr("budwood.__file__", str(tmp_path / "site-packages" / "budwood" / "__init__.py"))
    result = budwood_cli("demo")
    assert result.exit_code == 2
    assert "orders.py" in result.stderr


def test_demo_finds_the_orders_of_an_installed_package(budwood_cli, monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "budwood"
    (package / "_examples").mkdir(parents=True)
    (package / "_examples" / "orders.py").write_text(
        "def split(train, test, seed):\n    return [{'prompt': 'in the wheel'}], [{'prompt': 'too'}]\n"
    )
    monkeypatch.setattr("budwood.__file__", str(package / "__init__.py"))
    assert budwood_cli("demo", "-o", "d").exit_code == 0
    assert "in the wheel" in (tmp_path / "d" / "train.jsonl").read_text()
