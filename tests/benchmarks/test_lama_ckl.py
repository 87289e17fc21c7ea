"""The table of facts to learn: its files, its curves, and the whole command on a tiny model with invented facts."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks.lama_ckl import command, scorers, studies
from benchmarks.lama_ckl.arms import ARMS, CURVES, GROUPS, RULES, SHAPES, Arm, Learned, Shipped, choose_arms, title
from benchmarks.lama_ckl.facts import invented_facts, load_facts
from benchmarks.lama_ckl.learning import PADS, Probes, Schedule, adapted, learn
from benchmarks.lama_ckl.plan import cost
from benchmarks.lama_ckl.report import report
from benchmarks.lama_ckl.scorers import Workshop
from benchmarks.lama_ckl.shapes import normalisation, shaped
from benchmarks.lama_ckl.weighting import WORD_CLASSES, make_weights, word_class

from budwood.data.offsets import OffsetTokens
from budwood.data.synthetic import generate
from budwood.errors import DataError, UsageError
from budwood.methods.taalm.prior import PriorFacts, make_scorer, save_prior
from budwood.methods.taalm.settings import HeadSettings, MetaSettings, StageSettings, WeightSettings
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
        vocabulary=True,
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
    return Workshop(base, OffsetTokens(base.tokenizer), data, tmp_path, Schedule(epochs=2), "ta_train")


def test_facts_are_read_with_their_objects(shop, data):
    facts = shop.facts("to_learn")
    assert len(facts) == 4
    for passage, (start, stop), answer, probe in zip(facts.passages, facts.targets, facts.objects, facts.descriptive):
        assert passage.text[start:stop].casefold() == answer.casefold()
        asked = bytes(token for token in probe.labels if token >= 0)  # byte-level ids are not bytes, but as many
        assert len(asked) == len(answer.encode())
    assert len(shop.facts("ta_train", within=True)) == 4
    assert len(invented_facts(3, 0, shop.tokens)) == 3
    twice = shop.facts("to_learn") + shop.facts("to_learn")
    assert len(twice) == len(twice.foils) == 8
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
            probes = Probes(facts.descriptive, facts.foils, facts.schematic)
            runs.append(list(learn(model, rows, weights, probes, shop.schedule, seed=0)))
    assert runs[0] == runs[1] and [look.epoch for look in runs[0]] == [0, 1, 2]
    assert runs[0][2].point.nll < runs[0][0].point.nll
    assert torch.equal(before, target_logits(shop.base.model, batch)[0])
    assert not any("lora" in name for name, _ in shop.base.model.named_modules())


def line(arm, seed, keeps, nlls, learns):
    looks = [
        {"epoch": epoch, "learn": learn, "nll": nll, "keep": keep, "margin": [None, 1.0]}
        for epoch, (keep, nll, learn) in enumerate(zip(keeps, nlls, learns))
    ]
    common = {"to_learn": "x", "base": "tiny", "dtype": "float32", "device": "cpu"}
    common["schedule"] = {"epochs": 2, "learning_rate": 0.1}
    return {
        "arm": arm,
        "seed": seed,
        "looks": looks,
        "weights": {"object_mass": 0.5, "tokens_used": 1.0, "by_class": {"object": 2.0}},
        "common": common,
        "minutes": 1.0,
        "training_cpu_s": 2.0,
        "tokens": 100,
    }


KEPT = [[1, 1], [1, 1], [1, 1]]
LINES = [
    line("uniform", 0, KEPT, [[6, 6], [6, 6], [6, 6]], [[0, 0], [0.5, 0.5], [0, 0]]),
    line("oracle", 0, KEPT, [[6, 6], [4, 4], [2, 2]], [[0, 0], [0, 0], [1, 1]]),
    line("head", 0, KEPT, [[6, 6], [6, 6], [5, 5]], [[0, 0], [0.25, 0.25], [0.75, 0.75]]),
]


def test_the_report_has_shares_of_the_oracles_gain():
    text = report(LINES)
    rows = [row for row in text.splitlines() if row.startswith(f"| {title('head')} ")]
    figures, shares, differences, classes = rows
    assert "| 5.00 | 0.750 | 0.750 | 2 | 1.000 | 1.750 | 1.00 | 2 | 0.750 / 5.00 / 1.000 |" in figures
    assert "| 0.25 [0.25, 0.25] | 0.50 [0.50, 0.50] | 0.50 [0.50, 0.50] | 1.00 [1.00, 1.00] | – | 0.50" in shares
    assert "| -1.00 [-1.00, -1.00] | +0.25 [+0.25, +0.25] |" in differences
    assert classes.startswith(f"| {title('head')} | 2.00 | – |")
    assert report([]) == "no finished cells"
    assert "no arm beside" in report(LINES[:1])


def test_cells_of_an_older_version_are_still_shown():
    old = line("uniform", 0, KEPT, [[6, 6]] * 3, [[0, 0]] * 3)
    del old["weights"]["by_class"]
    for look in old["looks"]:
        del look["margin"]
    assert "| uniform | 0 | 6.00 | 0.000 | 0.000 | 0 | 1.000 | 1.000 | – |" in report([old])


def test_the_plan_goes_by_finished_cells(shop):
    facts = shop.facts("to_learn")
    tokens = sum(len(passage.spans) for passage in facts.passages)
    cells = [(ARMS["uniform"], 0), (CURVES[0], 0)]
    assert cost(cells, facts, 12, LINES) == (tokens * 42, pytest.approx(tokens * 42 * 0.01 / 60))
    assert cost([], facts, 12, []) == (0, 0)
    assert cost([(ARMS["head"], 0)], facts, 12, [])[1] > 2


def test_the_command_goes_on_where_it_was(data, base, tmp_path, monkeypatch, capsys):
    folder = base.source.folder
    options = f"--data {data} --base {folder} --dtype float32 --to-learn to_learn --to-keep to_learn --epochs 1"
    options += " --vocabulary ta_train"
    options += f" --work {tmp_path / 'work'} --results {tmp_path / 'r.jsonl'}"
    monkeypatch.setattr(command, "_known", lambda shop, facts: list(facts.descriptive))
    assert command.main([*options.split(), "--arms", "uniform", "oracle", "--minutes", "0"]) == 0
    assert not (tmp_path / "r.jsonl").exists()
    assert command.main([*options.split(), "--arms", "uniform"]) == 0
    assert command.main([*options.split(), "--arms", "uniform", "oracle"]) == 0
    lines = [json.loads(text) for text in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [(one["arm"], one["seed"], len(one["looks"])) for one in lines] == [("uniform", 0, 2), ("oracle", 0, 2)]
    assert command.main([*options.split(), "--arms", "uniform", "focal", "--plan"]) == 0
    assert "cells to compute: focal/0; studies: none" in capsys.readouterr().err
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
    assert choose_arms(["all"]) == list(ARMS.values())
    assert all(ARMS[arm.name] is arm for group in GROUPS.values() for arm in group)
    with pytest.raises(UsageError, match="no arm 'hed'"):
        choose_arms(["hed"])


def test_every_shape_of_weights(shop):
    facts = shop.facts("to_learn")
    passage = facts.passages[0]
    scores = torch.linspace(-4, 0, len(passage.spans))
    found = {arm.shape: shaped(passage, scores, WeightSettings(), arm.shape) for arm in SHAPES}
    share = torch.zeros(len(scores))
    share[list(passage.scored)] = scores[list(passage.scored)].exp()
    share = share / share.max()
    torch.testing.assert_close(found["max_normalised"], share, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["as_is"] / found["as_is"].max(), share, atol=1e-5, rtol=1e-5)
    assert torch.equal(found["binarised"], (share >= 0.5).float())
    assert torch.equal(found["light_dropped"] > 0, share >= 0.2)
    kept = found["top_tenth"] > 0
    assert int(kept.sum()) == -(-len(passage.scored) // 10) and share[kept].min() > share[~kept].max()
    assert {shape for shape in found if normalisation(shape) == "token"} == {"max_normalised"}


def test_classes_of_words(shop):
    facts = shop.facts("to_learn")
    found = {word_class(passage, t) for passage in facts.passages for t in passage.scored}
    assert found <= set(WORD_CLASSES) - {"object"} and {"capitalised", "other word"} <= found
    _, made = make_weights(shop, ARMS["oracle"], facts)
    assert {name for name, mean in made["by_class"].items() if mean > 0} == {"object"}
    _, made = make_weights(shop, ARMS["uniform"], facts)
    assert set(made["by_class"].values()) == {1.0}


def test_a_shipped_scorer_is_an_arm(shop, monkeypatch):
    settings = HeadSettings(layers=(2,), width=4, members=1)
    scorer = make_scorer(shop.base.model, settings, seed=0)
    facts = PriorFacts(
        base="x", fingerprint=shop.base.source.fingerprint, data="d" * 64, body=settings, judged={"alignment": 0.5}
    )
    save_prior(shop.work / "tiny", scorer, facts)
    monkeypatch.setattr(scorers, "SCORERS", shop.work)
    weights, made = make_weights(shop, Arm("tiny", "tiny", Shipped("tiny"), floor=0.2), shop.facts("to_learn"))
    assert made["alignment"] == 0.5 and made["data"] == "d" * 12
    assert all(float(one.mean()) > 0 for one in weights)


def test_what_is_to_be_learned_is_kept_from_the_scorers(shop):
    """The user's vocabulary is other facts of the same relations, never the facts themselves."""
    facts = shop.facts("ta_train")
    asked = facts.passages[:2]
    plain, wide = (
        scorers._training_facts(shop, Learned(HeadSettings(), vocabulary=wide), asked) for wide in (False, True)
    )
    added = {passage.text for passage in wide.passages} - {passage.text for passage in plain.passages}
    every = {passage.text for passage in shop.facts("ta_train", within=True).passages}
    assert added == every - {passage.text for passage in asked}


def test_the_studies_on_a_tiny_model(shop):
    found = {name: studies.compute_study(shop, name) for name in studies.STUDIES}
    drops = found["one_step"]["drops"]
    assert {len(values) for values in drops.values()} == {2}  # the facts with an object in the window
    assert sum(drops["J at 0.1"]) > sum(drops["uniform at 0.1"])
    assert min(found["closed_form"]["cosines"]) > 0.999
    assert {len(values) for values in found["interference"]["cosines"].values()} == {2}
    tables = studies.study_rows([{"study": name} | one for name, one in found.items()])
    assert [len(rows) for _, rows in tables] == [8, 1, 4]
    assert tables[0][1][0][3] == "" and tables[0][1][2][3].endswith(" %")
    with pytest.raises(UsageError, match="no study 'one'"):
        studies.choose_studies(["one"])


def test_the_gradients_of_single_tokens_add_up_to_that_of_the_text(shop):
    facts = shop.facts("to_learn")
    rows = [*(passage.encoded for passage in facts.passages), *facts.schematic]
    with adapted(shop.base, rows, shop.work, rank=2, seed=1) as model:
        theta = studies.choose_theta(model)
        (lesson, *_) = scorers.lessons(shop, model, facts)
        single = studies._token_gradients(theta, lesson, list(lesson.passage.scored))
        evidence = studies.collated(theta, [lesson.passage.encoded])
        even = studies.targets([lesson])[0].float()
        whole = studies._flat(studies.inner_gradient(theta, theta.start(1), evidence, even))[0]
    torch.testing.assert_close(single.mean(dim=0), whole, atol=1e-6, rtol=1e-4)
