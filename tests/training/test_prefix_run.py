"""Whole runs with and without the frozen-prefix cache."""

import logging
import os
import signal

import pytest
import torch

from budwood.errors import InterruptedRunError
from budwood.training import prefix_run
from budwood.training.checkpoints import trainable_tensors
from budwood.training.folder import RunFolder, read_events
from budwood.training.loss import weighted_nll
from budwood.training.prefix_cache import PrefixCache
from budwood.training.prefix_run import refusal
from budwood.training.train import train
from tests.training.distributed_launch import launch
from tests.training.rows import collate, lora_model, losses, make_rows, run, settings
from tests.training.stacks import stack, top


@pytest.fixture
def served(monkeypatch):
    """The caches that runs attach."""
    caches, attached = [], PrefixCache.attached

    def watched(self, model):
        caches.append(self)
        return attached(self, model)

    monkeypatch.setattr(PrefixCache, "attached", watched)
    return caches


def probe(model):
    total, weight = weighted_nll(model, collate(make_rows(3, 9)))  # rows that are not stored
    return {"nll": (total / weight).item()}


@pytest.mark.parametrize("name, setting", [("llama", "auto"), ("gpt2", True)])
def test_a_run_is_the_same_with_and_without(name, setting, tmp_path, served):
    found = []
    for cached in (False, setting):
        model, path = top(name, lora_dropout=0.2), tmp_path / str(cached)
        changes = dict(epochs=3, cache_prefix=cached, batch_size=4, accumulate=2, probes={"p": probe})
        result = run(path, model, make_rows(20), make_rows(5, 1), **changes)
        figures = [(e.get("loss"), e.get("eval_loss"), e.get("p/nll")) for e in read_events(path)]
        found.append((figures, trainable_tensors(model), result.best_evaluation_loss))
        assert not (path / "prefix_cache").exists()
    (whole, tensors, best), (cached, cached_tensors, cached_best) = found
    assert len(cached) == len(whole) > 5 and served and served[0].batches > len(whole)
    for one, other in zip(whole, cached):
        assert [v is None for v in one] == [v is None for v in other]
        assert [v for v in other if v is not None] == pytest.approx([v for v in one if v is not None], abs=5e-6)
    assert cached_best == pytest.approx(best, abs=5e-6)
    for key, tensor in tensors.items():
        torch.testing.assert_close(cached_tensors[key], tensor, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "make, changes",
    [
        (lambda: lora_model(), {}),
        (lambda: top("llama", (2, 3)), {}),
        (lambda: top(), {"epochs": 1}),
        (lambda: top("gpt2", base=stack("gpt2", dropout=0.1)), {}),
        (lambda: top(), {"gradient_checkpointing": True}),
    ],
    ids=["all blocks", "half of them", "one epoch", "dropout below", "checkpointing"],
)
def test_auto_leaves_a_run_alone_where_it_would_not_help_or_not_be_the_same(make, changes, tmp_path, served, caplog):
    run(tmp_path / "run", make(), make_rows(8), **({"epochs": 2} | changes))
    assert not served and not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_dropout_below_the_cut_is_off_where_the_cache_was_asked_for(tmp_path, served):
    base = stack("gpt2", dropout=0.1)
    run(tmp_path / "run", top("gpt2", base=base), make_rows(8), epochs=2, cache_prefix=True)
    assert len(served) == 2 and served[0].batches > 0  # once to check it, once to train


def test_what_was_asked_for_and_is_not_possible_is_said(tmp_path, served, caplog):
    run(tmp_path / "run", lora_model(), make_rows(8), cache_prefix=True)
    assert not served and "the lowest layer is trained" in caplog.text
    noisy = top()
    noisy.get_input_embeddings().neftune_noise_alpha = 5.0
    assert "NEFTune" in refusal(noisy, settings()) and refusal(top(), settings()) is None


def test_a_cache_that_changes_a_batch_is_not_used(tmp_path, monkeypatch, caplog):
    """States of other weights, as a block that remembers something would give."""
    found = []
    for wrong in (False, True):
        if wrong:
            monkeypatch.setattr(prefix_run.PrefixCache, "deviation", lambda *_: 0.5)
        run(tmp_path / str(wrong), top(), make_rows(8), epochs=2, cache_prefix=wrong)
        found.append(losses(tmp_path / str(wrong)))
    assert found[0] == found[1] and "logits differ by 0.5" in caplog.text


class Stopping(RunFolder):
    def append_event(self, event):
        super().append_event(event)
        if event["step"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_that_is_resumed_finds_its_states_and_ends_with_the_same_bits(tmp_path):
    changes = settings(epochs=3, cache_prefix=True)
    kinds = {"seed": 0, "progress": False}
    whole = top()
    train(whole, make_rows(12), [], collate, changes, RunFolder(tmp_path / "whole"), **kinds)
    with pytest.raises(InterruptedRunError):
        train(top(), make_rows(12), [], collate, changes, Stopping(tmp_path / "run"), **kinds)
    assert list((tmp_path / "run" / "prefix_cache").glob("*/states.bin"))
    model = top()
    train(model, make_rows(12), [], collate, changes, RunFolder(tmp_path / "run"), resume=True, **kinds)
    wanted = trainable_tensors(whole)
    assert all(torch.equal(tensor, wanted[key]) for key, tensor in trainable_tensors(model).items())
    assert not (tmp_path / "run" / "prefix_cache").exists()


@pytest.mark.slow
def test_two_processes_share_one_cache_and_take_the_steps_of_one(tmp_path):
    """With the mean over sequences; 11 rows in steps of 8, so one process has a blank row at an epoch's end."""
    done = launch("distributed_prefix.py", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    model = top()
    changes = settings(batch_size=8, epochs=2, normalise="sequence", cache_prefix=False)
    train(model, make_rows(11), make_rows(5, 1), collate, changes, RunFolder(tmp_path / "one"), seed=0, progress=False)
    for key in ("loss", "eval_loss"):
        one, two = ([e.get(key) for e in read_events(p)] for p in (tmp_path / "one", tmp_path / "two" / "run"))
        assert two == [value if value is None else pytest.approx(value, abs=2e-5) for value in one], key
    for rank in (0, 1):
        assert int((tmp_path / "two" / f"served-{rank}.txt").read_text()) > 0
        tensors = torch.load(tmp_path / "two" / f"final-{rank}.pt")
        for name, tensor in trainable_tensors(model).items():
            torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=2e-5)


def test_rows_that_probes_ask_about_are_served_too(tmp_path, served):
    found = []
    for probed in ((), make_rows(3, 9)):
        path = tmp_path / f"{len(probed)}"
        run(path, top("llama"), make_rows(20), probes={"p": probe}, probed=probed, epochs=2, evaluate_every=5)
        found.append([event["p/nll"] for event in read_events(path) if "p/nll" in event])
    without, with_them = (cache.batches for cache in served[1::2])  # the first of each two is the check
    assert with_them - without >= len(found[1]) == 3 and found[1] == pytest.approx(found[0], abs=5e-6)
