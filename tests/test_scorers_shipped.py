"""The scorers that ship: small, readable, made from invented facts, and better than uniform weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripts import train_scorers

from budwood.data.offsets import OffsetTokens
from budwood.data.synthetic import RELATIONS, generate
from budwood.data.synthetic.relations import KNOWN
from budwood.methods.taalm.heuristics import oracle
from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.methods.taalm.passages import from_texts
from budwood.methods.taalm.prior import read_facts
from budwood.methods.taalm.weighting import find_prior, weigh
from budwood.models import load_base, locate

FOLDER = Path(__file__).parents[1] / "src" / "budwood" / "resources" / "scorers"


@pytest.mark.parametrize("name", sorted(train_scorers.BODIES))
def test_a_scorer_is_small_and_was_judged(name):
    facts = read_facts(FOLDER / name)
    assert facts.body.kind == train_scorers.BODIES[name]["body.kind"]
    assert facts.judged["alignment"] > 4 * facts.judged["uniform"]


def test_all_of_them_together_are_at_most_3_mb():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"prior.json", "weights.safetensors"}
    assert sum(path.stat().st_size for path in files) < 3e6


def test_the_script_judges_by_relations_that_it_does_not_train_on(tmp_path):
    training, judging = train_scorers.divided()
    assert not set(training) & set(judging) and set(training) | set(judging) == set(RELATIONS)
    known = [fact.relation in {one.name for one in KNOWN} for fact in train_scorers.draw(training, (3, 2), 0)]
    assert known == [True] * 3 + [False] * 2
    rows = train_scorers.write(tmp_path / "facts.jsonl", generate(3, 0, training)).read_text().splitlines()
    assert len(rows) == 3 and json.loads(rows[0])["relation"] in {relation.name for relation in training}


@pytest.mark.slow
@pytest.mark.smollm2
def test_the_head_looks_at_the_objects_of_facts_that_it_never_saw():
    """The weight on the objects is at least three times their share of the tokens."""
    base = load_base(locate("smollm2"), dtype="float32")
    facts = [fact for fact in generate(60, 7, train_scorers.divided()[1]) if len(fact.evidence) < 250][:24]
    passages = from_texts(
        [fact.evidence for fact in facts], [fact.origin for fact in facts], OffsetTokens(base.tokenizer)
    )
    settings = DocumentSettings(floor=0.0)
    prior = find_prior(settings, base.source)
    assert prior is not None and prior.name == "smollm2"
    found = weigh(base, passages, settings, prior)
    hits = [oracle(passage, [fact.object_span]) for passage, fact in zip(passages, facts, strict=True)]
    mass = sum(float((w * hit).sum() / w.sum()) for w, hit in zip(found.values, hits)) / len(facts)
    share = sum(float(hit.sum()) / len(passage.scored) for hit, passage in zip(hits, passages)) / len(facts)
    assert mass > 3 * share
