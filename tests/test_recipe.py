"""Recipes: layers over layers, defaults that follow, and errors that name the nearest key."""

from __future__ import annotations

import dataclasses

import pytest

from budwood import _defaults, recipe
from budwood.errors import ConfigError, NotSupportedError
from budwood.tuning import registry
from budwood.tuning.registry import find_method

GIVEN = {"model": "smollm2", "evidence": {"kind": "examples", "paths": ["rows.jsonl"]}}


def test_method_and_tuner_and_learning_rate_follow_from_the_evidence():
    made = recipe.resolve(None, GIVEN)
    assert (made.method, made.tuner_name, made.training.learning_rate) == ("gift", "gift", 3e-3)
    other = recipe.resolve(None, {"tuner": {"name": "lora"}}, GIVEN)
    assert (other.method, other.tuner_name, other.training.learning_rate) == ("gift", "lora", 1e-3)


def test_later_layers_win_and_dots_reach_into_blocks(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("extends: paper_qv\ntraining: {epochs: 5, batch_size: 2}\ntuner.rank: 8\n")
    made = recipe.resolve(file, {"training.epochs": 7}, GIVEN)
    assert (made.training.epochs, made.training.batch_size) == (7, 2)
    assert made.tuner.model_dump() | {"rank": 8, "targets": ["q", "v"], "side": "input"} == made.tuner.model_dump()


def test_another_tuner_drops_the_settings_of_the_one_below_but_not_those_beside_its_name(tmp_path):
    made = recipe.resolve("paper_qv", {"tuner": {"name": "lora"}}, {"tuner.rank": 3}, GIVEN)
    assert made.tuner_name == "lora" and made.tuner.model_dump()["rank"] == 3
    assert made.tuner.model_dump()["targets"] == "all"
    assert recipe.resolve(None, {"tuner": {"name": "lora"}}, {"tuner.rank": 3}, GIVEN).tuner.model_dump()["rank"] == 3


def test_what_is_written_reads_back_equal(tmp_path):
    made = recipe.resolve("paper_qv", {"seed": 4, "data.system": "ü: - x"}, GIVEN)
    (tmp_path / "recipe.yaml").write_text(made.to_yaml(), encoding="utf-8")
    assert recipe.load(tmp_path / "recipe.yaml") == made
    assert recipe.differences(made, made) == []
    assert recipe.differences(made, recipe.resolve("paper_qv", {"seed": 5, "data.system": "ü: - x"}, GIVEN))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"trainng.epochs": 1}, "did you mean 'training'"),
        ({"tuner.rnk": 1}, "did you mean 'rank'"),
        ({"training.epochs": "many"}, "training.epochs = 'many'"),
        ({"tuner.name": "lroa"}, "did you mean 'lora'"),
        ({"method": "gfit"}, "did you mean 'gift'"),
        ({"evidence.kind": "wishes"}, "wishes"),
        ({"model": None}, "model = None"),
    ],
)
def test_mistakes_are_named(changes, text):
    with pytest.raises(Exception, match=text) as caught:
        recipe.resolve(None, GIVEN, changes)
    assert caught.value.exit_code == 2


def test_a_missing_part_is_named():
    with pytest.raises(ConfigError, match="does not say 'evidence'"):
        recipe.build({"model": "x", "method": "gift", "tuner": {"name": "gift"}})


def test_extends_takes_files_as_seen_from_the_recipe_and_chains(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "bottom.yaml").write_text("extends: paper_qv\ntraining: {epochs: 5, batch_size: 2}\n")
    (tmp_path / "deep" / "middle.yaml").write_text("extends: ../bottom.yaml\ntraining: {epochs: 6}\n")
    (tmp_path / "top.yaml").write_text("extends: deep/middle.yaml\nseed: 9\n")
    made = recipe.resolve(tmp_path / "top.yaml", GIVEN)
    assert (made.seed, made.training.epochs, made.training.batch_size) == (9, 6, 2)
    assert made.tuner.model_dump()["targets"] == ["q", "v"]


def test_recipes_in_a_circle_are_refused_with_the_chain(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: c.yaml\n")
    (tmp_path / "c.yaml").write_text("extends: b.yaml\n")
    with pytest.raises(ConfigError, match=r"circle: b\.yaml extends c\.yaml extends b\.yaml"):
        recipe.resolve(tmp_path / "a.yaml", GIVEN)


@pytest.mark.parametrize("parent", ["papr_qv", "no.yaml", "[lora]", "3"])
def test_a_parent_that_is_not_there_is_named(tmp_path, parent):
    (tmp_path / "r.yaml").write_text(f"extends: {parent}\n")
    with pytest.raises(ConfigError, match=r"(?s)neither a file .* nor a preset.*budwood config presets"):
        recipe.resolve(tmp_path / "r.yaml", GIVEN)


@pytest.mark.parametrize(("text", "found"), [("", "is empty"), ("7", "holds the number 7"), ("[a]", "holds a list")])
def test_a_file_without_keys_is_refused_in_plain_words(tmp_path, text, found):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ConfigError, match=found):
        recipe.resolve(tmp_path / "r.yaml", GIVEN)


def test_evidence_from_above_replaces_the_one_below(tmp_path):
    (tmp_path / "r.yaml").write_text("method: lora\nevidence: {kind: instruction, text: Do it.}\n")
    assert recipe.resolve(tmp_path / "r.yaml", GIVEN).evidence.text is None


def test_presets_have_one_line_each():
    for name, line in recipe.presets().items():
        assert 20 < len(line) < 120 and line.endswith("."), name


def test_an_outline_goes_as_far_as_the_file_does(tmp_path):
    found = recipe.outline("paper_qv")
    assert found["missing"] == ["model", "evidence"] and not {"model", "evidence"} & set(found["recipe"])
    assert (found["recipe"]["tuner"]["side"], found["recipe"]["training"]["learning_rate"]) == ("input", 3e-3)
    (tmp_path / "r.yaml").write_text("training: {epochs: 5}\n")
    found = recipe.outline(tmp_path / "r.yaml")
    assert found["missing"] == ["model", "evidence", "method", "tuner"]
    assert found["recipe"]["training"]["epochs"] == 5 and found["recipe"]["training"]["learning_rate"] is None
    (tmp_path / "r.yaml").write_text("model: x\nevidence: {kind: examples, paths: [a]}\n")
    found = recipe.outline(tmp_path / "r.yaml")
    assert found["missing"] == [] and recipe.build(found["recipe"]).method == "gift"
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        (tmp_path / "r.yaml").write_text("training: {epoch: 5}\n")
        recipe.outline(tmp_path / "r.yaml")


@pytest.mark.parametrize("name", recipe.LEARNER)
def test_what_a_learner_does_not_take_is_refused_by_the_name_of_its_flag(name, monkeypatch):
    methods = registry.methods()
    taker = dataclasses.replace(methods["lora"], accepts=frozenset({name}))
    for takers, told in (({"lora": taker}, "a method that does: lora"), ({}, "this version has none")):
        monkeypatch.setattr(_defaults, "methods", lambda takers=takers: takers)
        with pytest.raises(
            NotSupportedError, match=f"--{name.replace('_', '-')} x: the method gift does not take"
        ) as caught:
            recipe.resolve(None, GIVEN, {name: "x"})
        assert told in caught.value.wanted


def test_what_a_learner_takes_becomes_its_setting():
    evidence = {"kind": "documents", "paths": ["facts.md"]}
    made = recipe.resolve(None, GIVEN | {"evidence": evidence}, {"learner.floor": 0.5, "rehearse": "old.txt"})
    assert made.learner is not None
    found = made.learner.model_dump(mode="json")
    assert (found["rehearse"], found["floor"]) == ("old.txt", 0.5)
    for method in registry.methods().values():
        assert method.accepts <= set(method.settings.model_fields if method.settings else ()), method.name


def test_every_preset_is_a_recipe():
    for name in recipe.presets():
        kind = find_method(recipe.outline(name)["recipe"]["method"]).evidence
        assert recipe.resolve(name, GIVEN | {"evidence": {"kind": kind, "paths": ["a.txt"]}})


def test_the_schema_lists_every_setting():
    schema = recipe.schema()
    assert {"model", "training", "tuner", "data", "extends"} <= set(schema["properties"])
    assert schema["required"] == []
