"""A prior as a folder: what was saved is what scores, and what does not fit is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from budwood.errors import AdapterError, BaseMismatchError, StorageError
from budwood.methods.taalm.prior import FACTS, WEIGHTS, PriorFacts, load_prior, make_scorer, save_prior
from budwood.methods.taalm.settings import BaseSettings, HeadSettings, WeightSettings
from tests import tiny
from tests.methods.taalm import cases
from tests.methods.taalm.test_scorer import TEXTS, moved

BODIES = {"head": HeadSettings(layers=(1,), width=8), "base": BaseSettings(rank=2)}


def saved(folder, body="head"):
    scorer = moved(make_scorer(tiny.llama(), BODIES[body], seed=4))
    facts = PriorFacts(
        base="tiny",
        fingerprint="f" * 64,
        data="d" * 64,
        body=BODIES[body],
        weights=WeightSettings(floor=0.1),
        judged={"alignment": 0.5, "uniform": 0.1},
        seed=4,
    )
    save_prior(folder, scorer, facts)
    return scorer, facts


@pytest.mark.parametrize("body", sorted(BODIES))
def test_what_was_saved_is_what_scores(body, tmp_path):
    scorer, facts = saved(tmp_path / "prior", body)
    loaded, read = load_prior(tmp_path / "prior", tiny.llama(), fingerprint="f" * 64)
    assert read == facts and not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    passages = cases.passages(TEXTS)
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in scorer.trained_state().items())
    for expected, found in zip(scorer.scores(passages), loaded.scores(passages)):
        assert_close(found, expected)
    assert sorted(path.name for path in (tmp_path / "prior").iterdir()) == [FACTS, WEIGHTS]


def test_another_base_is_refused_unless_forced(tmp_path):
    saved(tmp_path / "prior")
    with pytest.raises(BaseMismatchError, match="made on tiny"):
        load_prior(tmp_path / "prior", tiny.llama(), fingerprint="e" * 64)
    load_prior(tmp_path / "prior", tiny.llama(), fingerprint="e" * 64, force=True)
    with pytest.raises(AdapterError, match="do not fit"):
        load_prior(tmp_path / "prior", tiny.llama(hidden_size=64), fingerprint="f" * 64)


def test_a_prior_is_not_written_over(tmp_path):
    saved(tmp_path / "prior")
    with pytest.raises(StorageError, match="exists already"):
        saved(tmp_path / "prior")


def damage_facts(folder):
    (folder / FACTS).write_text("{")


def other_method(folder):
    facts = json.loads((folder / FACTS).read_text())
    (folder / FACTS).write_text(json.dumps(facts | {"method": "tagi"}))


def later_version(folder):
    facts = json.loads((folder / FACTS).read_text())
    (folder / FACTS).write_text(json.dumps(facts | {"format": 99}))


def no_weights(folder):
    (folder / WEIGHTS).unlink()


def damage_weights(folder):
    (folder / WEIGHTS).write_bytes(b"x")


def not_finite(folder):
    state = load_file(folder / WEIGHTS)
    save_file({name: value * torch.nan for name, value in state.items()}, folder / WEIGHTS)


def no_folder(folder):
    (folder / FACTS).unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (damage_facts, "cannot be read"),
        (other_method, "cannot be read"),
        (later_version, "format 99"),
        (no_weights, "missing"),
        (damage_weights, "cannot be read"),
        (not_finite, "not finite"),
        (no_folder, "holds no prior"),
    ],
)
def test_a_damaged_prior_is_an_error(spoil, said, tmp_path):
    saved(tmp_path / "prior")
    spoil(tmp_path / "prior")
    with pytest.raises(AdapterError, match=said):
        load_prior(tmp_path / "prior", tiny.llama(), fingerprint="f" * 64)
