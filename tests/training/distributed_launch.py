"""Runs a script of this folder as two processes on the CPU, as `accelerate launch` and `torchrun` do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def launch(script: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `script FOLDER WORDS…` in two processes with gloo between them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(HERE / script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    folder.mkdir(exist_ok=True)
    return subprocess.run([*command, str(folder), *words], cwd=folder, env=environment, capture_output=True, text=True)
