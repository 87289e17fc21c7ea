"""A bank of soft prompts against single prompts, LoRA and others, on a compressed model: a table that can be resumed.

    python benchmarks/idp.py --model COMPRESSED --uncompressed MODEL --text F… [--seeds 3] [--only SYSTEM…]
    python benchmarks/idp.py --report

Each finished cell (system, seed) is one line of `benchmarks/results/idp.jsonl`; one that is there is not computed
again. All systems are trained on the bank's total tokens, and scored on text that none of them has seen.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning threads starve other processes
sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the folder beside this file is `benchmarks.idp`

from benchmarks.idp.command import main

if __name__ == "__main__":
    raise SystemExit(main())
