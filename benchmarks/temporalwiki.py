"""Learning month after month from what changed in an encyclopaedia: facts that changed, facts that did not.

    python benchmarks/temporalwiki.py --data DIR [--arms base uniform taalm] [--seeds 2] [--minutes M]
    python benchmarks/temporalwiki.py --report

DIR holds for each period, such as 0901-1001,

    PERIOD_changed.jsonl, PERIOD_unchanged.jsonl     {"subject", "relation", "object"} a line, to be asked for
    PERIOD/ or PERIOD.jsonl                          the text that changed: files of any kind `adapt --documents` reads

Without texts only the base can be measured. Finished cells (arm, seed) are lines of
`benchmarks/results/temporalwiki.jsonl`; a cell that is there is not computed again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning threads starve other processes

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository: tables share their files and intervals

from benchmarks.temporalwiki.command import main

if __name__ == "__main__":
    raise SystemExit(main())
