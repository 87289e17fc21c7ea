import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def kill(folder, *words):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [
        sys.executable,
        "-W",
        "ignore::FutureWarning",
        "-m",
        "tests.training.killed",
        str(folder),
        *map(str, words),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_run_killed_between_any_two_file_operations_ends_with_the_same_bits(tmp_path):
    kill(tmp_path, "points", 3)


@pytest.mark.slow
def test_a_run_killed_at_many_points_ends_with_the_same_bits(tmp_path):
    kill(tmp_path, "points", 24)


@pytest.mark.slow
def test_a_run_killed_at_many_moments_ends_with_the_same_bits(tmp_path):
    kill(tmp_path, "moments", 10)
