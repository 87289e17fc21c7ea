"""GIFT against LoRA, shared LoRA, VeRA and IA3 on instruction tasks: a table that can be stopped and gone on with.

    python benchmarks/instructions.py --data DIR [--subset small] [--arms …] [--stage search|final|all] [--minutes M]
    python benchmarks/instructions.py --report

Each finished cell (arm, learning rate, seed) is one line of `benchmarks/results/instructions.jsonl`; a cell that is
there is not computed again, and several processes with different arms may share the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning threads starve other processes
sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the folder beside this file is `benchmarks.instructions`

from benchmarks.instructions.command import main

if __name__ == "__main__":
    raise SystemExit(main())
