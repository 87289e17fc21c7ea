import subprocess
import sys

import pytest
from pydantic import ValidationError

from budwood.training.settings import TrainingSettings


def test_every_setting_has_a_description():
    assert all(field.description for field in TrainingSettings.model_fields.values())


def test_the_settings_plan_status_and_events_load_no_torch():
    modules = "settings, plan, ledger, status, events, folder, signals, progress"
    code = f"import sys; from budwood.training import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_unknown_tracker_is_answered_with_the_known_ones():
    with pytest.raises(ValidationError, match="'tensorboard', 'trackio' or 'wandb'"):
        TrainingSettings(trackers=["wandbb"])


@pytest.mark.parametrize("wrong", [{"epoch": 3}, {"batch_size": 0}, {"betas": (0.9, 1.0)}, {"final_fraction": 2}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        TrainingSettings(**wrong)


def test_settings_are_frozen():
    with pytest.raises(ValidationError):
        TrainingSettings().epochs = 2
