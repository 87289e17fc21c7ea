"""Everything that CI runs, in order; stops at the first failure. `--fast` leaves out what needs minutes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def steps(fast: bool) -> list[tuple[str, list[str]]]:
    pytest = [str(BIN / "pytest"), "-q", "-n", "2", "--dist", "loadfile", "--durations", "12"]
    return [
        ("format", [str(BIN / "ruff"), "format", "--check", "."]),
        ("lint", [str(BIN / "ruff"), "check", "."]),
        ("types", [str(BIN / "mypy")]),
        ("arrows", [str(BIN / "lint-imports"), "--no-cache"]),
        ("tests", pytest + (["-m", "not slow"] if fast else [])),
    ]


def main() -> int:
    # Two pytest workers with one OpenMP thread each; torch's own default makes two cores slower than one.
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "WANDB_DISABLED": "true", "HF_HUB_DISABLE_TELEMETRY": "1"}
    for name, command in steps("--fast" in sys.argv[1:]):
        print(f"== {name}: {' '.join(Path(part).name if os.sep in part else part for part in command)}", flush=True)
        start = time.monotonic()
        code = subprocess.call(command, cwd=ROOT, env=environment)
        print(
            f"== {name}: {'ok' if code == 0 else f'failed ({code})'} in {time.monotonic() - start:.0f} s", flush=True
        )
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
