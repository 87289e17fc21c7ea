"""The table of the instruction tasks: its split, its order of rows, its file, its intervals, and the whole command."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from benchmarks.instructions import command
from benchmarks.instructions.arms import ARMS, LEARNING_RATES, Arm, choose_arms
from benchmarks.instructions.learning import Schedule, Score, judge, learn, step_groups
from benchmarks.instructions.report import difference
from benchmarks.instructions.results import append, hits, pack_scores, read
from benchmarks.instructions.tasks import DEV_ROWS, PILOT, SELECTION_ROWS, SUBSETS, VALIDATION_ROWS, load_corpus

import budwood.peft
from budwood.data.render import Renderer
from budwood.errors import DataError, UsageError
from budwood.tuning.attach import attach, count_parameters
from budwood.tuning.registry import find_tuner
from tests import tiny
from tests.benchmarks import corpus as made_up


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_up.write(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def corpus(folder):
    return load_corpus(folder, PILOT, Renderer(tiny.tokenizer(), "plain"))


def text(encoded) -> str:
    return tiny.tokenizer().decode(encoded.input_ids)


def test_full_subset_has_480_validation_rows():
    assert len(set(SUBSETS["full"])) * VALIDATION_ROWS == 480
    assert set(SUBSETS["small"]) < set(SUBSETS["full"])


def test_split_by_instance_id(corpus):
    task = corpus.tasks[0]
    assert [task.name for task in corpus.tasks] == list(PILOT)
    assert [len(part) for part in (task.train, task.selection, task.validation)] == [4, SELECTION_ROWS, 20]
    assert text(task.train[0]) == "Rule 0: say how the day is.\nInput: day 0\nOutput: fine<|im_end|>"
    days = [
        [text(question.answers[0]).split("Input: day ")[1].split("\n")[0] for question in part]
        for part in (task.selection, task.validation)
    ]
    assert days == [[str(i) for i in range(4, 4 + SELECTION_ROWS)], [str(i) for i in range(24, 44)]]


def test_accepted_answers_once_each_learned_one_first(corpus):
    odd = corpus.tasks[0].validation[1]
    assert [text(answer).rpartition(": ")[2] for answer in odd.answers] == ["fine<|im_end|>", "good<|im_end|>"]
    assert [len(task.validation) for task in corpus.dev] == [DEV_ROWS, DEV_ROWS]


def test_corpus_errors(folder, tmp_path):
    renderer = Renderer(tiny.tokenizer(), "plain")
    with pytest.raises(DataError, match="lacks the tasks absent"):
        load_corpus(folder, ["absent"], renderer)
    for name in ("train.jsonl", "dev.jsonl"):
        (tmp_path / name).write_text(json.dumps(made_up.rows("short", 1, 0)[0]) + "\n")
    with pytest.raises(DataError, match="short has 1 rows"):
        load_corpus(tmp_path, ["short"], renderer)
    (tmp_path / "dev.jsonl").write_text('{"task_id": "x"}\n')
    with pytest.raises(DataError, match="no field 'instance_id'"):
        load_corpus(tmp_path, ["short"], renderer)


def test_order_is_the_seeds_alone_and_goes_round(corpus):
    schedule = Schedule(steps=4, tasks_per_step=4, rows_per_task=2)
    steps = list(step_groups(corpus.tasks, schedule, seed=3))
    assert steps == list(step_groups(corpus.tasks, schedule, seed=3))
    assert steps != list(step_groups(corpus.tasks, schedule, seed=4))
    seen = [row for groups in steps for group in groups for row in group]
    assert len({row.origin.line for row in seen}) == len(seen) == 32  # 2 rounds over 8 tasks: every row once
    assert len({text(group[0]).split(":")[0] for groups in steps[:2] for group in groups}) == 8


def test_schedule_rises_and_falls():
    schedule = Schedule(steps=20)
    factors = [schedule.factor(step) for step in range(20)]
    assert factors[0] == pytest.approx(0.2) and max(factors) == 1.0 and factors[5] == 1.0
    assert factors[5:] == sorted(factors[5:], reverse=True) and 0.05 < factors[-1] < 0.12


def test_learning_reaches_exact_answers(corpus):
    budwood.peft.register()
    lora = find_tuner("lora")
    model = attach(tiny.llama().requires_grad_(False), lora, lora.settings(rank=8), seed=0)
    questions = [task.validation for task in corpus.tasks[:2]]
    before, _ = judge(model, questions)
    trained = learn(model, corpus.tasks[:2], Schedule(steps=60), 1e-2, seed=0)
    after, _ = judge(model, questions)
    # The tiny model's narrow embedding keeps it from being surer than about 0.7 nats.
    assert trained.losses[-1] < 1 < 5 < trained.losses[0] and not trained.diverged
    assert not any(score.exact for score in before) and all(score.exact for score in after)


def test_compact_scores_round_trip():
    scores = [Score(i % 3 == 0, i % 2 == 0, 0.5 * i, 2) for i in range(11)]
    packed = json.loads(json.dumps(pack_scores(scores)))
    assert hits(packed).tolist() == [float(score.exact) for score in scores]
    assert hits(packed, "answered_hits").tolist() == [float(score.answered) for score in scores]
    assert packed["exact"] == pytest.approx(4 / 11, abs=1e-6)
    assert packed["nll_per_token"] == pytest.approx(sum(score.nll for score in scores) / 22)


def test_file_survives_a_killed_writer(tmp_path, capsys):
    path = tmp_path / "results" / "cells.jsonl"
    assert read(path) == {}
    append(path, {"key": "a", "value": 1})
    with path.open("a") as file:
        file.write('{"key": "b", "val')
    append(path, {"key": "c", "value": 3})
    append(path, {"key": "a", "value": 2})
    assert {key: line["value"] for key, line in read(path).items()} == {"a": 2, "c": 3}
    assert "line 2" in capsys.readouterr().err


def test_intervals():
    rng = np.random.default_rng(0)
    a = rng.random((3, 200))
    equal = difference(a, a)
    assert (equal.mean, equal.low, equal.high) == (0, 0, 0)
    shifted = difference(a + 0.1, a)
    assert shifted.low == pytest.approx(0.1) and shifted.high == pytest.approx(0.1)
    noisy = difference(a + rng.normal(0.05, 1, a.shape), a)
    assert noisy.low < noisy.mean < noisy.high
    # The rows alone give a standard error of 1 / sqrt(600); seeds that agree add little to it.
    assert 2 * 1.96 / 600**0.5 < noisy.high - noisy.low < 4 * 1.96 / 600**0.5
    # Seeds that disagree widen the interval however many rows there are.
    apart = difference(a + np.array([[0.0], [0.3], [0.6]]), a)
    assert apart.high - apart.low > 0.4


def test_arms():
    assert len({arm.name for arm in ARMS}) == len(ARMS)
    for arm in ARMS:
        if arm.tuner in ("gift", "lora"):
            assert not isinstance(arm.build(), str)
    assert "no tuner 'absent'" in Arm("x", "x", "absent").build()
    assert "refuses" in Arm("x", "x", "lora", {"rank": 0}).build()
    assert choose_arms(["lora_r1", "headline"])[0].name == "lora_r1"
    with pytest.raises(UsageError, match="gift_r3"):
        choose_arms(["gift_r3"])


@pytest.mark.parametrize(
    "name, count",
    {"gift_r32": 258_048, "gift_blocks_r64": 294_912, "gift_segments_r11": 266_112, "gift_ranks": 258_048,
     "shared_lora": 254_400, "lora_r1": 305_280}.items(),
)  # fmt: skip
def test_parameters_on_the_shape_of_smollm2(name, count):
    (arm,) = choose_arms([name])
    budwood.peft.register()
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    with torch.device("meta"):
        base = tiny.llama(**shape, num_attention_heads=9, num_key_value_heads=3).requires_grad_(False)
        assert count_parameters(attach(base, *arm.build(), seed=0)) == count


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny.save(tiny.llama(), tmp_path_factory.mktemp("base"))


def run(folder, base, results, *flags: str) -> int:
    fixed = ["--data", str(folder), "--base", str(base), "--device", "cpu", "--subset", "small"]
    fixed += ["--results", str(results), "--search-steps", "2", "--final-steps", "3", "--seeds", "1"]
    return command.main([*fixed, *flags])


def test_the_command_stops_goes_on_and_reports(folder, base, tmp_path, capsys):
    results = tmp_path / "cells.jsonl"
    arms = ["--arms", "base", "gift_r32", "lora_r16"]
    assert run(folder, base, results, *arms, "--cells", "4") == 0
    said = capsys.readouterr()
    assert "13 cells to compute" in said.err and "minutes" in said.err and "stopped here" in said.err
    assert len(results.read_text().splitlines()) == 4
    assert run(folder, base, results, *arms, "--stage", "final") == 0
    assert "no final run of lora_r16: its search is not complete" in capsys.readouterr().err
    assert run(folder, base, results, *arms) == 0
    first = results.read_text()
    lines = [json.loads(line) for line in first.splitlines()]
    assert len(lines) == 13 == len({line["key"] for line in lines})
    assert run(folder, base, results, *arms) == 0
    assert results.read_text() == first  # nothing was left to compute

    searched = [line for line in lines if (line["arm"], line["stage"]) == ("gift_r32", "search")]
    trials = {line["learning_rate"]: line["selection"]["nll_per_token"] for line in searched}
    final = {line["arm"]: line for line in lines if line["stage"] == "final"}
    assert set(trials) == set(LEARNING_RATES)
    assert final["gift_r32"]["learning_rate"] == min(trials, key=lambda rate: trials[rate])
    assert final["gift_r32"]["validation"]["rows"] == 160 and final["gift_r32"]["dev"]["rows"] == 20
    assert len(final["gift_r32"]["losses"]) == 3 and final["base"]["losses"] == []
    assert final["base"]["parameters"] == 0 < final["gift_r32"]["parameters"]

    capsys.readouterr()
    assert command.main(["--report", "--results", str(results)]) == 0
    tables = capsys.readouterr().out
    assert "| GIFT r=32, one φψ a kind of layer − LoRA r=16 | 1 |" in tables
    assert "| ii_letters_list |" in tables and "best at the edge" in tables


def test_a_run_that_diverges_is_a_cell_too(folder, base, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.instructions.running.LEARNING_RATES", (1e-3, 1e30))
    results = tmp_path / "cells.jsonl"
    assert run(folder, base, results, "--arms", "lora_r1", "--search-steps", "4") == 0
    assert [line["diverged"] for line in read(results).values()] == [False, True, False]
    assert "seed 0: diverged" in capsys.readouterr().err


def test_what_cannot_be_run_is_said(folder, base, tmp_path, capsys, monkeypatch):
    results = tmp_path / "cells.jsonl"
    assert command.main(["--results", str(results)]) == 2
    assert "--data DIR" in capsys.readouterr().err
    assert run(folder, base, results, "--arms", "nonsense") == 2
    monkeypatch.setattr("benchmarks.instructions.arms.tuners", dict)
    assert run(folder, base, results, "--arms", "lora_r1") == 2
    assert "skipped lora_r1: this version has no tuner 'lora'" in capsys.readouterr().err
    assert not results.exists()


def test_base_in_bf16_is_another_table(folder, base, tmp_path):
    results = tmp_path / "cells.jsonl"
    for dtype in ("fp32", "bf16"):
        assert run(folder, base, results, "--arms", "gift_r32", "--cells", "1", "--dtype", dtype) == 0
    full, half = read(results).values()
    assert full["table"] != half["table"] and half["common"]["dtype"] == "bfloat16"
    assert half["losses"] != full["losses"] and half["losses"][0] == pytest.approx(full["losses"][0], rel=0.05)


def test_minutes_end_a_run_between_cells(folder, base, tmp_path, capsys):
    results = tmp_path / "cells.jsonl"
    assert run(folder, base, results, "--arms", "base", "--minutes", "-1") == 0
    assert not results.exists() and "stopped here" in capsys.readouterr().err
