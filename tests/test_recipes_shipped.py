"""The recipes of `recipes/` resolve, say when to use them, and are what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

from budwood import recipe
from budwood.data.settings import DataSettings
from budwood.training.settings import TrainingSettings
from budwood.tuning.registry import find_tuner

FOLDER = Path(__file__).parents[1] / "recipes"
GIVEN = {"model": "smollm2", "evidence": {"kind": "examples", "paths": ["rows.jsonl"]}}
NAMES = sorted(path.name for path in FOLDER.glob("*.yaml"))


NOTES = GIVEN | {"evidence": {"kind": "documents", "paths": ["notes"]}}


REPAIR = GIVEN | {"evidence": {"kind": "repair", "paths": ["text.txt"]}}
BY_NAME = {"documents.yaml": NOTES, "repair.yaml": REPAIR}


def resolved(name: str) -> recipe.Recipe:
    return recipe.resolve(FOLDER / name, {}, BY_NAME.get(name, GIVEN))


def test_there_are_these():
    assert NAMES == ["documents.yaml", "examples.yaml", "gift-paper-qv.yaml", "lora-baseline.yaml", "repair.yaml"]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_resolves_and_says_when_to_use_it_and_how(name):
    made = resolved(name)
    assert recipe.build(made.model_dump(mode="json")) == made
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text.startswith("# You ") and f"--recipe recipes/{name} -o runs/" in text


def test_the_recipe_for_examples_spells_out_the_defaults():
    assert resolved("examples.yaml") == recipe.resolve(None, {}, GIVEN)


@pytest.mark.parametrize(("kind", "given"), [("documents", NOTES), ("repair", REPAIR)])
def test_recipe_and_preset_for_documents_and_repair_spell_out_the_defaults(kind, given):
    assert resolved(f"{kind}.yaml") == recipe.resolve(kind, {}, given) == recipe.resolve(None, {}, given)


def test_the_paper_s_recipe_is_its_preset():
    made = resolved("gift-paper-qv.yaml")
    assert made.tuner == recipe.resolve("paper_qv", {}, GIVEN).tuner
    assert made.training.learning_rate == find_tuner("gift").learning_rate


def test_the_baseline_differs_in_the_adapter_only():
    gift, lora = resolved("examples.yaml"), resolved("lora-baseline.yaml")
    assert (lora.tuner_name, lora.method) == ("lora", "lora")
    assert gift.data == lora.data == DataSettings()
    own_rate = {"learning_rate": TrainingSettings().learning_rate}
    assert gift.training.model_copy(update=own_rate) == lora.training.model_copy(update=own_rate)
    assert lora.training.learning_rate == find_tuner("lora").learning_rate
