"""The table of facts to learn: its files, its curves, and the whole command on a tiny model with invented facts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from benchmarks.lama_ckl import command
from benchmarks.lama_ckl.arms import RULES, SCORERS, Arm, Learned, choose_arms, title
from benchmarks.lama_ckl.facts import invented_facts, load_facts
from benchmarks.lama_ckl.learning import PADS, Schedule, adapted, learn
from benchmarks.lama_ckl.report import curve, fact_nll_at_keep, report
from benchmarks.lama_ckl.weighting import Workshop, make_weights

from budwood.data.offsets import OffsetTokens
from budwood.data.synthetic import generate
from budwood.errors import DataError, UsageError
from budwood.evals.curves import nll_at_keep
from budwood.methods.taalm.settings import HeadSettings, MetaSettings, StageSettings
from budwood.models import load_base
from budwood.training.loss import target_logits
from tests import tiny

SPLITS = {"ta_train": 7, "ta_train_cpu": 5, "ta_val_cpu": 3, "replay_pool_cpu": 3, "to_learn": 4, "to_keep": 3}
QUICK = StageSettings(steps=2, batch_size=4, validate_every=1)
LEARNED = Arm(
    "quick",
    "quick",
    Learned(
        HeadSettings(layers=(2,), width=4, members=1),
        QUICK,
        more=True,
        meta=MetaSettings(steps=1, batch_size=2, validate_every=1),
    ),
    floor=0.2,
)


def row(fact, number):
    start, stop = fact.object_span
    return {
        "uuid": str(number),
        "relation": fact.relation,
        "subject": fact.subject,
        "object": fact.object,
        "evidence_window": fact.evidence,
        "object_span_in_window": [start, stop],
        "task_descriptive": fact.task_descriptive,
        "task_schematic": fact.task_schematic,
        "fits64": number % 2 == 0,
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, facts = tmp_path_factory.mktemp("data"), iter([f for f in generate(200, 0) if len(f.evidence) < 110])
    for name, count in SPLITS.items():
        lines = [json.dumps(row(next(facts), number)) for number in range(count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    tiny.save(tiny.llama(num_hidden_layers=8), folder)
    return load_base(str(folder), dtype="float32", device="cpu", attention="eager")


@pytest.fixture
def shop(base, data, tmp_path):
    return Workshop(base, OffsetTokens(base.tokenizer), data, tmp_path, Schedule(epochs=2))


def test_facts_are_read_with_their_objects(shop, data):
    facts = shop.facts("to_learn")
    assert len(facts) == 4
    for passage, (start, stop), answer, probe in zip(facts.passages, facts.targets, facts.objects, facts.descriptive):
        assert passage.text[start:stop].casefold() == answer.casefold()
        asked = bytes(token for token in probe.labels if token >= 0)  # byte-level ids are not bytes, but as many
        assert len(asked) == len(answer.encode())
    assert len(shop.facts("ta_train", within=True)) == 4
    assert len(invented_facts(3, 0, shop.tokens)) == 3
    with pytest.raises(DataError):
        load_facts(data, "missing", shop.tokens)


@pytest.mark.parametrize("arm", RULES, ids=lambda arm: arm.name)
def test_every_rule_gives_weights_of_mean_1(arm, shop):
    facts = shop.facts("to_learn")
    weights, made = make_weights(shop, arm, facts)
    for passage, one in zip(facts.passages, weights):
        assert one.shape == (len(passage.spans),) and (one >= 0).all() and one[0] == 0
        assert float(one.sum()) == pytest.approx(len(passage.scored), rel=1e-5)
    assert 0 < made["tokens_used"] <= 1 and 0 <= made["object_mass"] <= 1
    if arm.name == "oracle":
        assert made["object_mass"] == 1
    if arm.name == "rho1":
        kept = [int((one > 0).sum()) / len(passage.scored) for passage, one in zip(facts.passages, weights)]
        assert all(0.6 <= share < 0.63 for share in kept)


def test_a_scorer_is_trained_once(shop):
    facts = shop.facts("to_learn")
    first, made = make_weights(shop, LEARNED, facts)
    assert made.keys() >= {"alignment_value", "alignment_uniform", "drop_value", "object_mass"}
    files = {path: path.stat().st_mtime_ns for path in shop.work.rglob("*.safetensors")}
    again, _ = make_weights(shop, LEARNED, facts)
    assert files == {path: path.stat().st_mtime_ns for path in shop.work.rglob("*.safetensors")}
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(first, again))


def test_a_run_leaves_the_base_as_it_was_and_serves_from_the_cache(shop):
    facts = shop.facts("to_learn")
    rows = [passage.encoded for passage in facts.passages]
    batch = PADS(rows)
    before = target_logits(shop.base.model, batch)[0]
    weights, _ = make_weights(shop, RULES[1], facts)
    runs = []
    for _ in range(2):
        with adapted(shop.base, [*rows, *facts.descriptive], shop.work, rank=2, seed=1) as model:
            runs.append(list(learn(model, rows, weights, facts.descriptive, facts.schematic, shop.schedule, seed=0)))
    assert runs[0] == runs[1] and [look.epoch for look in runs[0]] == [0, 1, 2]
    assert runs[0][2].point.nll < runs[0][0].point.nll
    assert torch.equal(before, target_logits(shop.base.model, batch)[0])
    assert not any("lora" in name for name, _ in shop.base.model.named_modules())


def line(arm, seed, keeps, nlls, learns):
    looks = [
        {"epoch": epoch, "learn": learn, "nll": nll, "keep": keep}
        for epoch, (keep, nll, learn) in enumerate(zip(keeps, nlls, learns))
    ]
    common = {"to_learn": "x", "base": "tiny", "dtype": "float32", "device": "cpu"}
    common["schedule"] = {"epochs": 2, "learning_rate": 0.1}
    made = {"object_mass": 0.5, "tokens_used": 1.0}
    return {
        "arm": arm,
        "seed": seed,
        "looks": looks,
        "objects": [0, 0],
        "weights": made,
        "common": common,
        "minutes": 1.0,
        "training_cpu_s": 2.0,
    }


def test_the_nll_of_each_fact_is_interpolated_as_their_mean_is():
    one = line("uniform", 0, [[1, 1], [1, 1], [1, 0.5]], [[6, 8], [4, 7], [3, 2]], [[0, 0], [0, 0], [1, 0]])
    found = fact_nll_at_keep(one)
    np.testing.assert_allclose(found, [4 + 0.2 * (3 - 4), 7 + 0.2 * (2 - 7)])
    assert found.mean() == pytest.approx(nll_at_keep(curve(one)))


def test_the_report_has_shares_of_the_oracles_gain():
    keeps = [[1, 1], [1, 1], [1, 1]]
    lines = [
        line("uniform", 0, keeps, [[6, 6], [6, 6], [6, 6]], [[0, 0], [0, 0], [0, 0]]),
        line("oracle", 0, keeps, [[6, 6], [4, 4], [2, 2]], [[0, 0], [0, 1], [1, 1]]),
        line("head", 0, keeps, [[6, 6], [6, 6], [5, 5]], [[0, 0], [0, 0], [0.5, 0.5]]),
    ]
    text = report(lines)
    (found,) = [row for row in text.splitlines() if row.startswith(f"| {title('head')}") and " / " in row]
    assert "| 0.25 | 0.50 | 0.50 |" in found
    assert f"| {title('head')} | 0 | -1.000 [-1.000, -1.000] | +0.500 [+0.500, +0.500] |" in text
    assert report([]) == "no finished cells"


def test_the_command_goes_on_where_it_was(data, base, tmp_path, monkeypatch, capsys):
    folder = base.source.folder
    options = f"--data {data} --base {folder} --dtype float32 --to-learn to_learn --to-keep to_learn --epochs 1"
    options += f" --work {tmp_path / 'work'} --results {tmp_path / 'r.jsonl'}"
    monkeypatch.setattr(command, "_known", lambda shop, facts: list(facts.descriptive))
    assert command.main([*options.split(), "--arms", "uniform", "oracle", "--minutes", "0"]) == 0
    assert not (tmp_path / "r.jsonl").exists()
    assert command.main([*options.split(), "--arms", "uniform"]) == 0
    assert command.main([*options.split(), "--arms", "uniform", "oracle"]) == 0
    lines = [json.loads(text) for text in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [(one["arm"], one["seed"], len(one["looks"])) for one in lines] == [("uniform", 0, 2), ("oracle", 0, 2)]
    capsys.readouterr()
    assert command.main(["--report", "--results", str(tmp_path / "r.jsonl")]) == 0
    assert title("oracle") in capsys.readouterr().out
    assert command.main(["--results", str(tmp_path / "r.jsonl")]) == UsageError.exit_code


def test_only_facts_that_the_base_knows_are_kept(shop):
    facts = shop.facts("to_keep")
    for probe in command._known(shop, facts):
        ids = torch.tensor([probe.input_ids])
        best = shop.base.model(input_ids=ids).logits[0].argmax(dim=-1)
        assert all(int(best[t - 1]) == label for t, label in enumerate(probe.labels) if label >= 0)


def test_names_of_arms():
    assert choose_arms(["rules", "oracle"]) == list(RULES)
    assert len({arm.name for arm in (*RULES, *SCORERS)}) == len(RULES) + len(SCORERS)
    with pytest.raises(UsageError, match="no arm 'hed'"):
        choose_arms(["hed"])
