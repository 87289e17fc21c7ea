"""Trackers report where they are asked to, and nowhere else."""

from __future__ import annotations

import pytest

import budwood
from budwood.errors import ConfigError
from tests.e2e.conftest import QUICK


@pytest.mark.usefixtures("unverified")
class TestTensorBoard:
    def test_the_events_of_each_step_are_in_its_log(self, base, rows, tmp_path):
        accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        chosen = QUICK | {"training.trackers": ["tensorboard"]}
        run = budwood.adapt(base, budwood.Examples(rows), out=tmp_path / "run", overrides=chosen, progress=False)
        (log,) = run.path.rglob("*tfevents*")
        found = accumulator.EventAccumulator(str(log))
        found.Reload()
        losses = {event.step: event.value for event in found.Scalars("train/loss")}
        steps = run.metrics["steps"]
        assert list(losses) == list(range(1, steps + 1))
        assert losses[steps] == pytest.approx(run.metrics["final_loss"])
        assert next(event.step for event in found.Scalars("eval/loss")) == 0


def test_a_tracker_that_is_not_installed_is_refused(base, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    chosen = QUICK | {"training.trackers": ["trackio"]}
    with pytest.raises(ConfigError, match="trackio is not installed"):
        budwood.adapt(base, budwood.Examples(rows), out=tmp_path / "run", overrides=chosen, progress=False)
    assert not (tmp_path / "run" / "adapter").exists()
