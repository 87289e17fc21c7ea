"""Each command passes its flags to one library function, and shows what came back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.main import get_command

from budwood._prepare import PriorRequest
from budwood._request import Request
from budwood.cli._app import app
from budwood.evidence import Documents, Examples, Instruction, Repair
from budwood.recipe import LEARNER
from budwood.tuning import registry
from tests.cli import stand_ins as stand_in
from tests.cli.conftest import COMMANDS, only_object
from tests.cli.stand_ins import last


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_json_is_one_object_however_noisy_the_library(budwood_cli, words):
    result = budwood_cli(*words, "--json")
    assert result.exit_code == 0
    assert "error" not in only_object(result.stdout)
    assert "stray print" in result.stderr


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_people_get_text_without_noise(budwood_cli, words):
    result = budwood_cli(*words)
    assert result.exit_code == 0
    assert result.stdout.strip()
    assert "stray" not in result.stdout
    assert "note of budwood" not in result.stdout


# adapt


def test_adapt_passes_every_flag(budwood_cli):
    flags = "--method gift --tuner lora --recipe r.yaml -o runs/a --seed 7 --resume --force -q"
    settings = "--prior p --weights rho1 --rehearse old.jsonl --update recadam --base-run r --set training.lr=0.1"
    words = f"adapt org/name@main --examples a --examples b {flags} {settings} --set a.b=[1,2]".split()
    result = budwood_cli(*words)
    assert result.exit_code == 0
    learner = {"prior": "p", "weights": "rho1", "rehearse": "old.jsonl", "update": "recadam", "base_run": "r"}
    assert last("carry_out") == {
        "request": Request(
            model="org/name@main",
            evidence=Examples((Path("a"), Path("b"))),
            method="gift",
            tuner="lora",
            seed=7,
            recipe=Path("r.yaml"),
            overrides={"training.lr": 0.1, "a.b": [1, 2], **learner},
        ),
        "out": Path("runs/a"),
        "resume": True,
        "force": True,
        "progress": False,
    }


def test_adapt_leaves_what_is_not_given_to_the_library(budwood_cli):
    assert budwood_cli("adapt").exit_code == 0
    given = last("carry_out")
    assert given == {
        "request": Request(overrides={}),
        "out": None,
        "resume": False,
        "force": False,
        "progress": True,
    }


def test_flags_of_a_learner_are_shown_once_a_method_accepts_them():
    shown = {parameter.name: not parameter.hidden for parameter in get_command(app).commands["adapt"].params}
    accepted = {name for method in registry.methods().values() for name in method.accepts}
    for name in LEARNER:
        assert shown[name] is (name in accepted), f"cli/adapt.py: hidden={name not in accepted} for --{name}"
    assert accepted <= set(LEARNER)


@pytest.mark.parametrize(
    ("words", "evidence"),
    [
        (["--examples", "a"], Examples((Path("a"),))),
        (["--documents", "d"], Documents((Path("d"),))),
        (["--repair", "r"], Repair((Path("r"),))),
        (["--instruction", "Translate."], Instruction("Translate.")),
        (["--instruction", "T", "--example", "a => b", "--example", "c=>d => e"], "pairs"),
    ],
)
def test_adapt_makes_one_kind_of_evidence(budwood_cli, words, evidence):
    assert budwood_cli("adapt", "smollm2", *words).exit_code == 0
    wanted = Instruction("T", (("a", "b"), ("c", "d => e"))) if evidence == "pairs" else evidence
    assert last("carry_out")["request"].evidence == wanted


def test_adapt_reads_an_instruction_from_a_file(budwood_cli, tmp_path):
    (tmp_path / "task.txt").write_text("Übersetze.\n", encoding="utf-8")
    assert budwood_cli("adapt", "smollm2", "--instruction", "@task.txt").exit_code == 0
    assert last("carry_out")["request"].evidence == Instruction("Übersetze.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--examples", "a", "--repair", "b"], "--examples and --repair"),
        (["--examples", "a", "--example", "x => y"], "without --instruction"),
        (["--instruction", "T", "--example", "no arrow"], "IN => OUT"),
        (["--instruction", "T", "--example", " => y"], "IN => OUT"),
        (["--instruction", "@missing.txt"], "missing.txt"),
        (["--examples", "a", "--set", "lr"], "NAME=VALUE"),
        (["--examples", "a", "--set", "=1"], "NAME=VALUE"),
        (["--examples", "a", "--set", "lr=[1"], "not YAML"),
    ],
)
def test_adapt_refuses_with_what_was_wanted(budwood_cli, words, told):
    result = budwood_cli("adapt", "smollm2", *words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert not result.stdout
    assert not stand_in.CALLS


def test_adapt_refuses_an_instruction_that_is_not_text(budwood_cli, tmp_path):
    (tmp_path / "task.txt").write_bytes(b"\xff\xfe\x00")
    assert budwood_cli("adapt", "smollm2", "--instruction", "@task.txt").exit_code == 2


def test_adapt_dry_run_only_previews(budwood_cli):
    result = budwood_cli("adapt", "smollm2", "--examples", "a", "--dry-run", "--resume", "--seed", "3")
    assert [name for name, _ in stand_in.CALLS] == ["preview"]
    assert last("preview")["request"].seed == 3 and last("preview")["resume"] is True
    assert len(result.stdout.splitlines()) <= 20
    for part in ("gift with the tuner lora", "147,456", "450 trained on", "3 dropped", "120, the first 5", "0.003"):
        assert part in result.stdout, part


def test_adapt_reports_on_a_screen_and_says_nothing_twice(budwood_cli):
    lines = budwood_cli("adapt", "smollm2", "--examples", "a", "-o", "runs/my run").stdout.splitlines()
    assert len(lines) <= 17
    names = [line[:20].strip() for line in lines]
    assert len({name for name in names if name}) == len([name for name in names if name])
    text = "\n".join(lines)
    for part in (
        "runs/my run: gift on smollm2",
        "147,456",
        "2,442,240",
        "591,000 bytes",
        "3 dropped",
        "yes: 2 checks",
    ):
        assert part in text, part
    assert "budwood eval 'runs/my run' --rows FILE" in text
    assert only_object(budwood_cli("adapt", "smollm2", "--examples", "a", "--json").stdout)["run"] == "runs/made up"


BRIEF = {
    "adapt": "runs/made up",
    "adapt --dry-run": "120 steps, 147456 trained parameters",
    "demo": "runs/demo/run",
    "plan": "budwood adapt smollm2 --examples 'my rows.jsonl' -o runs/x",
    "data check": "3 rows, 0 problems",
    "eval": "nll 0.01 (base 2.5), exact_match 0.955 (base 0)",
    "generate": '{"name":"Anna"} [x]',
    "verify": "verified",
    "export": "out/lora",
    "report": "runs/[a]/report/index.html",
    "config presets": "paper\nlora",
}


@pytest.mark.parametrize("name", BRIEF)
def test_quiet_prints_the_result_and_nothing_else(budwood_cli, name):
    assert budwood_cli(*COMMANDS[name], "-q").stdout == f"{BRIEF[name]}\n"


# the other commands


def test_data_check(budwood_cli):
    result = budwood_cli("data", "check", "a", "b", "--model", "smollm2", "--set", "data.max_length=64")
    assert last("check_data") == {
        "paths": [Path("a"), Path("b")],
        "model": "smollm2",
        "overrides": {"data.max_length": 64},
    }
    assert "dropped.too_long" in result.stdout and "give --model" not in result.stdout
    assert "give --model to count tokens" in budwood_cli("data", "check", "a").stdout


def test_data_check_ends_with_2_when_rows_cannot_be_used(budwood_cli, monkeypatch):
    problem = {"file": "rows.jsonl", "line": 7, "problem": "no completion"}
    monkeypatch.setattr(stand_in, "PROBLEMS", {"problems": [problem], "problem_count": 1})
    result = budwood_cli("data", "check", "rows.jsonl")
    assert result.exit_code == 2
    assert "no completion" in result.stdout
    assert only_object(budwood_cli("data", "check", "rows.jsonl", "--json").stdout)["problems"] == [problem]


@pytest.mark.parametrize(
    ("text", "rows"),
    [("0:3", slice(0, 3)), (":2", slice(0, 2)), ("4:", slice(4, None)), ("5", slice(5, 6)), (":", slice(0, None))],
)
def test_data_show_takes_a_range(budwood_cli, text, rows):
    assert budwood_cli("data", "show", "a", "--rows", text).exit_code == 0
    assert last("show_data") == {"path": Path("a"), "model": None, "rows": rows}


@pytest.mark.parametrize("text", ["", "a:b", "-1:2", "1:2:3"])
def test_data_show_refuses_another_range(budwood_cli, text):
    result = budwood_cli("data", "show", "a", "--rows", text)
    assert result.exit_code == 2
    assert "FROM:TO" in result.stderr


def test_data_show_marks_what_is_trained_on(budwood_cli):
    lines = budwood_cli("data", "show", "rows.jsonl").stdout.splitlines()
    assert lines[0] == "rows.jsonl:1: 3 tokens, 2 trained on"
    assert lines[1] == "[b]in⟦ out!⟧"
    assert lines[2].replace(" ", "") == "5⟦72⟧"


def test_eval(budwood_cli):
    words = "--rows t.jsonl --base org/b --limit 10 --force".split()
    budwood_cli("eval", "runs/a", *words, "-q")
    assert last("evaluate") == {
        "path": Path("runs/a"),
        "rows": Path("t.jsonl"),
        "base": "org/b",
        "limit": 10,
        "force": True,
        "progress": False,
    }
    result = budwood_cli("eval", "runs/a", *words)
    assert result.stdout.split() == "200 rows base adapted nll 2.5 0.01 exact_match 0 0.955".split()


def test_generate(budwood_cli):
    flags = "--base b --system s --max-new-tokens 5 --temperature 0.5 --seed 3 --force"
    result = budwood_cli("generate", "runs/a", "--prompt", "Hi", *flags.split())
    given = {"path": Path("runs/a"), "prompt": "Hi", "base": "b", "system": "s", "max_new_tokens": 5}
    assert last("generate") == given | {"temperature": 0.5, "seed": 3, "force": True}
    assert result.stdout == '{"name":"Anna"} [x]\n'
    assert "9 tokens in 0.5 s" in result.stderr


def test_verify(budwood_cli):
    result = budwood_cli("verify", "runs/a", "--base", "b", "--force", "--native-only")
    assert last("verify_run") == {"path": Path("runs/a"), "base": "b", "force": True, "portable": False}
    assert result.exit_code == 0
    assert result.stdout.rstrip().endswith("verified")
    budwood_cli("verify", "runs/a")
    assert last("verify_run")["portable"] is True


@pytest.mark.parametrize("command", ["verify", "demo"])
def test_a_failed_check_is_shown_and_ends_with_4(budwood_cli, library, command):
    library.VERIFIED.append(False)
    result = budwood_cli(*COMMANDS[command])
    assert result.exit_code == 4
    assert "not verified: logits equal" in result.stdout
    result = budwood_cli(*COMMANDS[command], "--json")
    assert result.exit_code == 4
    report = only_object(result.stdout)
    assert (report["verify"] if command == "demo" else report)["ok"] is False


def test_export(budwood_cli):
    result = budwood_cli("export", "runs/a", "--to", "gguf", "-o", "out", "--base", "b", "--force")
    assert last("open_run") == {"path": Path("runs/a"), "base": "b", "force": True}
    given = last("export")
    assert (given["kind"], given["out"], given["force"]) == ("gguf", Path("out"), True)
    for part in (
        "out/lora: lora, rank 8, 210 adapted modules, 123,456 bytes",
        "  vllm serve [x]",
        "Padded to rank 8.",
    ):
        assert part in result.stdout, part
    assert ["logits", "equal", "yes", "0", "1e-05", "-"] in [line.split() for line in result.stdout.splitlines()]


def test_config_schema_is_json_for_people_too(budwood_cli):
    assert json.loads(budwood_cli("config", "schema").stdout) == {"title": "Recipe", "type": "object"}


def test_config_presets_and_show(budwood_cli):
    assert budwood_cli("config", "presets").stdout.splitlines()[0].split() == "paper As in [the] paper.".split()
    assert budwood_cli("config", "show", "r.yaml").stdout == "# left to the flags: model\nmethod: gift\nseed: 0\n"
    assert last("outline") == {"file": "r.yaml"}


def test_methods_keep_one_line_a_row_in_a_pipe(budwood_cli):
    lines = budwood_cli("methods").stdout.splitlines()
    assert len(lines) == 501
    assert lines[0].split() == ["method", "evidence", "tuner", "learns", "keeps", "paper"]
    assert "[φ], ψ" in lines[1] and "merge, export" in lines[1]
    assert max(map(len, lines)) < 250 and not any(line.endswith(" ") or " " * 40 in line for line in lines)


def test_prepare_passes_everything_on(budwood_cli):
    words = ["prepare", "smollm2", "taalm", "--corpus", "a.jsonl", "--corpus", "b.jsonl", "-o", "priors/[a]", "-q"]
    result = budwood_cli(*words, "--set", "stage.steps=5", "--seed", "3", "--resume", "--base-run", "r")
    assert result.stdout == "priors/[a]\n"
    given = last("make_prior")
    corpus = (Path("a.jsonl"), Path("b.jsonl"))
    assert given["request"] == PriorRequest("smollm2", "taalm", corpus, 3, {"stage.steps": 5}, base_run=Path("r"))
    assert (given["out"], given["resume"], given["force"], given["progress"]) == (
        Path("priors/[a]"),
        True,
        False,
        False,
    )
    shown = budwood_cli("prepare", "smollm2", "taalm", "--corpus", "a.jsonl", "-o", "priors/[a]").stdout
    assert "validation texts" in shown and "--prior 'priors/[a]'" in shown


@pytest.mark.parametrize("worse", [True, False])
def test_adapt_says_when_the_result_is_worse_and_praises_nothing(budwood_cli, library, monkeypatch, worse):
    nll = {"base": 3.1, "chosen": 3.25 if worse else 3.0, "best constant": 3.2}
    choice = {"nll": nll, "texts": 12, "histogram": {"sea": 5, "law": 7}, "dynamic_gain": False}
    monkeypatch.setattr(library, "SUMMARY", library.SUMMARY | {"choice": choice, "prompts": []})
    result = budwood_cli("adapt", "small", "--repair", "a.txt")
    assert result.exit_code == 0
    line = "worse than the model without prompts (3.25 against 3.1 nats a token): train longer or give more text"
    assert (line in result.stdout.splitlines()) is worse
    assert ("one prompt would do" in result.stdout) is not worse
    assert ("budwood export" in result.stdout) is not worse
    assert (
        only_object(budwood_cli("adapt", "small", "--repair", "a.txt", "--json").stdout)["shortfall"] == line
    ) is worse


def test_adapt_says_when_documents_taught_nothing(budwood_cli, library, monkeypatch):
    side = {"probes": 4, "accuracy": 1.0, "exact": 1.0, "nll": 0.2}
    recall = {"own_words": {"before": side, "after": side | {"nll": 0.1}}, "learned_by": "own_words"}
    recall |= {"kept_enough": True, "best_epoch": 1.0, "keep_wanted": 0.95}
    monkeypatch.setattr(library, "SUMMARY", library.SUMMARY | {"recall": recall})
    shown = budwood_cli("adapt", "smollm2", "--documents", "a.txt").stdout
    assert "epoch 1: nothing new was learned (to keep: 95%)" in shown and "learned most" not in shown
    assert "nothing new was learned (100.0% of the answers' tokens right before" in shown


def test_what_was_dropped_is_named_one_a_line_and_ten_at_most(budwood_cli, library, monkeypatch):
    reasons = {f"reason {n}": {"count": 1, "first": [f"notes/{n}.txt"]} for n in range(8)}
    reasons["too long"] = {"count": 40, "first": [f"notes/long{n}.txt" for n in range(20)]}
    rows = library.ROWS | {"dropped": reasons, "remarks": {"looks odd": {"count": 1, "first": ["notes/odd.txt"]}}}
    monkeypatch.setattr(library, "SUMMARY", library.SUMMARY | {"rows": rows})
    lines = budwood_cli("adapt", "smollm2", "--documents", "notes", "-o", "runs/a").stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  dropped"))
    named = [line.removeprefix("  dropped").strip() for line in lines[start : start + 11]]
    assert named[:2] == ["notes/0.txt: reason 0", "notes/1.txt: reason 1"]
    assert named[9:] == ["notes/long1.txt: too long", "and 38 more, see `budwood report runs/a`"]
    assert lines[start + 11].split(maxsplit=3)[3] == "notes/odd.txt: looks odd"
    assert "450 trained on, 50 held out, 48 dropped, 1 to look at" in lines[start - 1]
