"""Both stages on tiny models: they learn, go on where they were, and say where they are of no use."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from peft import LoraConfig
from torch.testing import assert_close

from budwood.errors import DataError, NonFiniteError
from budwood.methods.taalm import loop as loop_module
from budwood.methods.taalm.head import HeadScorer
from budwood.methods.taalm.importance import exact_weight_gradient, inner_step
from budwood.methods.taalm.lessons import Lesson, collated, digest, measure
from budwood.methods.taalm.loop import Course
from budwood.methods.taalm.meta_gradient import make_anchor, meta_gradient, one_step_drop
from budwood.methods.taalm.meta_training import train_on_importance, train_on_outcome
from budwood.methods.taalm.objectives import OBJECTIVES
from budwood.methods.taalm.row_cache import RowCache
from budwood.methods.taalm.scorer import scored_mask
from budwood.methods.taalm.settings import HeadSettings, MetaSettings, StageSettings
from budwood.methods.taalm.theta import EachRow, choose_theta, token_losses
from tests import tiny
from tests.methods.taalm import cases

SHORT = StageSettings(steps=12, batch_size=6, validate_every=3, patience=9, learning_rate=1e-2)
META = MetaSettings(steps=6, batch_size=4, validate_every=3, learning_rate=1e-2)


@pytest.fixture(scope="module")
def lessons():
    return cases.lessons(24)


def adapted():
    return cases.llama(LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"]))


def head(seed=0, **changes):
    return HeadScorer(tiny.llama(), HeadSettings(layers=(1,), width=8, **changes), seed=seed)


def measured(model, lessons, **options):
    return measure(model, [one.passage for one in lessons], [one.probe for one in lessons], **options)


def test_measured_importance_is_the_slope_of_each_loss_along_the_outer_gradient(lessons):
    model = cases.stirred(adapted())
    before = copy.deepcopy(model.state_dict())
    seen = []
    found = measured(model, lessons[:10], progress=lambda *args: seen.append(args))
    assert seen == [("importance", 8, 10), ("importance", 10, 10)]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())  # property 8
    theta = EachRow(model)
    for one in found[3:5]:
        probe, text = (
            {"input_ids": torch.tensor([row.input_ids]), "labels": torch.tensor([row.labels])}
            for row in (one.probe, one.passage.encoded)
        )
        point = theta.start(1)
        (loss,) = token_losses(theta, point, probe).sum(1) / (probe["labels"] != -100).sum()
        gradient = torch.autograd.grad(loss, point)
        losses = token_losses(theta, point, text)[0]
        naive = [
            sum((a * b).sum() for a, b in zip(gradient, torch.autograd.grad(each, point, retain_graph=True)))
            for each in losses[1:]
        ]
        assert torch.nn.functional.cosine_similarity(one.importance[1:], torch.stack(naive), dim=0) > 0.999
        assert_close(one.importance.norm(), torch.stack(naive).norm(), rtol=1e-2, atol=0)


def test_importance_is_kept(lessons, tmp_path):
    model, cache = adapted(), RowCache(tmp_path, "model")
    first = measured(model, lessons[:3], cache=cache)
    again = measured(cases.stirred(model), lessons[:3], cache=cache)
    assert all(torch.equal(a.importance, b.importance) for a, b in zip(first, again))
    with pytest.raises(DataError, match="nothing to train"):
        measure(model, [], [])


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_stage_1_learns_with_every_objective(objective, lessons, tmp_path):
    settings = SHORT.model_copy(update={"steps": 60, "objective": objective})
    outcome = train_on_importance(head(), lessons[:16], lessons[16:], settings, Course(tmp_path))
    assert outcome.beats_uniform and outcome.step > 0


def test_an_interrupted_stage_ends_as_one_that_was_left_alone(lessons, tmp_path):
    whole, stopped = head(), head()
    expected = train_on_importance(whole, lessons[:16], lessons[16:], SHORT, Course(tmp_path / "a", seed=3))

    def stop(_, step, __):
        if step == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_on_importance(stopped, lessons[:16], lessons[16:], SHORT, Course(tmp_path / "b", 3, stop))
    seen = []
    resumed = head(seed=5)  # its start is replaced by the state
    course = Course(tmp_path / "b", 3, lambda *args: seen.append(args))
    assert train_on_importance(resumed, lessons[:16], lessons[16:], SHORT, course) == expected
    assert seen[0] == ("stage1", 7, 12)
    for name, value in whole.trained_state().items():
        assert torch.equal(value, resumed.trained_state()[name])


@pytest.mark.parametrize("change", ["settings", "seed", "texts", "damage"])
def test_a_state_of_another_run_is_not_gone_on_from(change, lessons, tmp_path):
    train_on_importance(head(), lessons[:16], lessons[16:], SHORT, Course(tmp_path))
    if change == "damage":
        (tmp_path / "stage1.pt").write_bytes(b"x")
    settings = SHORT.model_copy(update={"weight_decay": 0.2}) if change == "settings" else SHORT
    texts = lessons[:15] if change == "texts" else lessons[:16]
    seen = []
    course = Course(tmp_path, int(change == "seed"), lambda *args: seen.append(args))
    train_on_importance(head(), texts, lessons[16:], settings, course)
    assert seen[0][1] == 1


def test_it_stops_early_and_says_that_uniform_weights_are_as_good(lessons, tmp_path, caplog):
    inverted = [Lesson(one.passage, one.probe, -one.importance) for one in lessons[:16]]
    settings = SHORT.model_copy(update={"steps": 60, "patience": 2})
    seen = []
    with caplog.at_level(logging.WARNING):
        scorer = head()
        start = scorer.trained_state()
        course = Course(tmp_path, 0, lambda *args: seen.append(args))
        outcome = train_on_importance(scorer, lessons[:16], inverted, settings, course)
    assert not outcome.beats_uniform and "does not beat uniform" in caplog.text
    assert seen[-1][1] < 60
    if outcome.step == 0:
        assert all(torch.equal(start[name], value) for name, value in scorer.trained_state().items())


def test_a_batch_goes_through_all_texts():
    scorer = head()
    loop = loop_module.Loop(scorer, SHORT, Course(None, 1), "x", rows=18, data="")
    assert sorted(i for step in range(3) for i in loop._batch(step)) == list(range(18))
    assert loop._batch(0) != loop._batch(3)


def test_a_loss_that_is_no_number_is_an_error(lessons, tmp_path):
    spoilt = [Lesson(one.passage, one.probe, one.importance * torch.nan) for one in lessons[:16]]
    with pytest.raises(NonFiniteError, match="loss of step 1"):
        settings = SHORT.model_copy(update={"objective": "regression"})
        train_on_importance(head(), spoilt, lessons[16:], settings, Course(tmp_path))


@pytest.mark.parametrize("inner_steps", [1, 2])
def test_the_meta_gradient_is_that_of_the_last_inner_step(inner_steps, lessons):
    model = adapted()
    model.base_model.model.set_attn_implementation("eager")
    theta, some = choose_theta(model), lessons[:2]
    mask = scored_mask([one.passage for one in some])
    weights = torch.rand(mask.shape, generator=torch.Generator().manual_seed(0)) * mask
    evidence, probes = (
        collated(theta, [one.passage.encoded for one in some]),
        collated(theta, [one.probe for one in some]),
    )
    point = theta.start(2)
    for _ in range(inner_steps - 1):
        point = inner_step(theta, point, evidence, weights, 0.5)
    expected = exact_weight_gradient(theta, point, evidence, weights, probes, 0.5) * mask
    found = meta_gradient(theta, some, weights, 0.5, inner_steps) * mask
    assert (torch.nn.functional.cosine_similarity(found, expected, dim=1) > 0.999).all()


def test_stage_2_learns_from_the_outer_loss_alone(lessons, tmp_path):
    model = adapted()
    before = copy.deepcopy(model.state_dict())
    blind = [Lesson(one.passage, one.probe, torch.zeros_like(one.importance)) for one in lessons]
    scorer = head(members=1, dropout=0.0)
    start = scorer.trained_state()
    outcome = train_on_outcome(scorer, model, blind[:8], blind[:8], META, Course(tmp_path))
    assert outcome.measure == "drop" and outcome.beats_uniform and outcome.step > 0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert any(not torch.equal(start[name], value) for name, value in scorer.trained_state().items())


def test_retention_needs_a_text_and_changes_what_is_learned(lessons, tmp_path):
    kept = META.model_copy(update={"retention": 5.0, "steps": 3, "inner_norm": 3.0})
    with pytest.raises(DataError, match="retention"):
        train_on_outcome(head(), adapted(), lessons[:4], lessons[4:8], kept, Course(tmp_path))
    anchors = [one.passage.encoded for one in lessons[8:10]]
    theta, weights = choose_theta(adapted()), scored_mask([one.passage for one in lessons[:4]]).float()
    found = [
        meta_gradient(theta, lessons[:4], weights, 10.0, 1, make_anchor(theta, anchors, [0, 1, 2, 3], weight))
        for weight in (0.0, 5.0)
    ]
    assert (found[0] - found[1]).abs().max() > 1e-6
    outcome = train_on_outcome(head(), adapted(), lessons[:4], lessons[4:8], kept, Course(tmp_path), anchors=anchors)
    assert outcome.measure == "drop"


def test_one_step_drop_is_that_of_a_step_of_this_norm(lessons):
    model = adapted()
    theta, one = EachRow(model), lessons[:1]
    found = one_step_drop(theta, one, scored_mask([one[0].passage]).float(), 0.2)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    text, probe = one[0].passage.encoded, one[0].probe

    def loss(row):
        logits = model(input_ids=torch.tensor([row.input_ids])).logits[0, :-1]
        return torch.nn.functional.cross_entropy(logits, torch.tensor(row.labels[1:]))

    before = loss(probe)
    gradient = torch.autograd.grad(loss(text), trained)
    norm = sum(g.square().sum() for g in gradient).sqrt()
    with torch.no_grad():
        for parameter, g in zip(trained, gradient):
            parameter -= 0.2 / norm * g
    assert found == pytest.approx(float((before - loss(probe)).detach()), abs=1e-4)


def test_the_digest_is_that_of_texts_and_questions(lessons):
    assert digest(lessons[:3]) == digest(lessons[:3]) != digest(lessons[1:4])
    other = [Lesson(one.passage, one.probe, one.importance * 2) for one in lessons[:3]]
    assert digest(other) == digest(lessons[:3])
