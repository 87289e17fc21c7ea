"""Token weights on facts to learn from text: uniform, rules, learned scorers and the oracle, along their curves.

    python benchmarks/lama_ckl.py --data DIR --arms all --studies all [--seeds 2] [--minutes M] [--plan]
    python benchmarks/lama_ckl.py --report

Arms come in groups: headline, rules, scorers, shapes (of the weights), inner (steps of the meta-training), curves (30
epochs). Each finished cell (arm, seed) or study is one line of `benchmarks/results/lama_ckl.jsonl`; a cell that is
there is not computed again. What scorers are trained on is kept in `--work`, so a stopped run goes on there, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning threads starve other processes

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository: tables share their files and intervals

from benchmarks.lama_ckl.command import main

if __name__ == "__main__":
    raise SystemExit(main())
