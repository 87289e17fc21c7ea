"""How long a user waits before anything happens: `import budwood`, `budwood --help`, and the second load of smollm2.

    python benchmarks/startup.py

Each figure is the best of several fresh processes; the load leaves out the import of torch and transformers.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from pathlib import Path

REPEATS = 5
BUDWOOD = Path(sys.executable).with_name("budwood")
LOAD = """
import time
import torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
import budwood.models.load, budwood.models.source
start = time.perf_counter()
budwood.models.load.load_base("smollm2")
print(time.perf_counter() - start)
"""
IMPORT = "import time; start = time.perf_counter(); import budwood; print(time.perf_counter() - start)"


def inside(code: str) -> float:
    """Return the seconds that a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def outside(*command: str) -> float:
    """Return the seconds that a whole process takes."""
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - start


def main() -> None:
    inside(LOAD)  # the first load converts the GGUF
    figures = {
        "import budwood": (min(inside(IMPORT) for _ in range(REPEATS)), 0.1),
        "budwood --help": (min(outside(str(BUDWOOD), "--help") for _ in range(REPEATS)), 0.5),
        "second load of smollm2": (min(inside(LOAD) for _ in range(REPEATS)), 3.0),
    }
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"commit {commit or 'unknown'}, Python {platform.python_version()}, {platform.machine()}, best of {REPEATS}")
    for name, (seconds, limit) in figures.items():
        print(f"{name:<24} {seconds:6.3f} s   limit {limit} s   {'ok' if seconds <= limit else 'TOO SLOW'}")
    print(json.dumps({name: round(seconds, 4) for name, (seconds, _) in figures.items()}))


if __name__ == "__main__":
    main()
