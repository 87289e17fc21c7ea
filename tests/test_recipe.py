"""Recipes: layers over layers, defaults that follow, and errors that name the nearest key."""

from __future__ import annotations

import pytest

from budwood import recipe
from budwood.errors import ConfigError

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


def test_every_preset_is_a_recipe():
    for name in recipe.presets():
        assert recipe.resolve(name, GIVEN)


def test_the_schema_lists_every_setting():
    schema = recipe.schema()
    assert {"model", "training", "tuner", "data", "extends"} <= set(schema["properties"])
    assert "tuner" not in schema["required"]
