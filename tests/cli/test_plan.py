"""`budwood plan` on the command line."""

from __future__ import annotations

from pathlib import Path

from budwood._request import Request
from budwood.evidence import Documents, Examples, Instruction
from tests.cli import stand_ins as stand_in
from tests.cli.conftest import only_object
from tests.cli.stand_ins import last


def test_plan_passes_every_flag(budwood_cli):
    words = "--examples a --examples b --method gift --tuner lora --recipe r.yaml --set a.b=1 -o runs/x --seed 3"
    assert budwood_cli("plan", "org/name", *words.split()).exit_code == 0
    request = Request("org/name", Examples((Path("a"), Path("b"))), "gift", "lora", 3, Path("r.yaml"), {"a.b": 1})
    assert last("plan") == {"request": request, "out": Path("runs/x")}


def test_plan_needs_no_evidence_but_takes_one_kind_only(budwood_cli):
    assert budwood_cli("plan", "smollm2").exit_code == 0
    assert last("plan")["request"].evidence is None
    budwood_cli("plan", "smollm2", "--instruction", "Do.", "--example", "a => b")
    assert last("plan")["request"].evidence == Instruction("Do.", (("a", "b"),))
    stand_in.CALLS.clear()
    result = budwood_cli("plan", "smollm2", "--examples", "a", "--repair", "b")
    assert result.exit_code == 2 and "--examples and --repair" in result.stderr
    assert budwood_cli("plan", "smollm2", "--example", "a => b").exit_code == 2
    assert not stand_in.CALLS


def test_people_see_figures_exports_and_the_command(budwood_cli):
    shown = budwood_cli("plan", "smollm2", "--examples", "a").stdout
    for part in ("134,515,008", "147,456", "620.3 MiB", "8 rows of 64 tokens", "188", "a + b", "unknown: no finished"):
        assert part in shown, part
    assert ["prompts", "no", "no", "soft", "prompt"] in [line.split() for line in shown.splitlines()]
    assert "budwood adapt smollm2 --examples 'my rows.jsonl' -o runs/x" in shown
    assert only_object(budwood_cli("plan", "smollm2", "--json").stdout)["steps"] == 188


def test_a_method_that_is_not_built_is_said_plainly(budwood_cli):
    result = budwood_cli("plan", "smollm2", "--documents", "d")
    assert last("plan")["request"].evidence == Documents((Path("d"),))
    assert result.exit_code == 0
    assert "does not have it yet" in result.stdout and "until then: write rows" in result.stdout
    assert "command" not in result.stdout
