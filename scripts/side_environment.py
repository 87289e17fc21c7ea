"""Make the environment in which `budwood compress --engine llm-compressor` runs llm-compressor. Once; minutes.

llm-compressor asks for an older transformers than budwood runs on. Arguments are passed on to pip; torch is the one
that is installed here, so where that came from another index, name the index:

    python scripts/side_environment.py --extra-index-url https://download.pytorch.org/whl/cpu
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import venv

from budwood.compression.side import REQUIREMENT, environment
from budwood.storage import write_text


def main(arguments: list[str]) -> int:
    place = environment()
    if (place / "ready").exists():
        print(f"{place} is there already")
        return 0
    print(f"making {place}, once: minutes", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    pip = [place / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    torch = f"torch=={importlib.metadata.version('torch')}"
    try:
        subprocess.run([*map(str, pip), *arguments, torch, REQUIREMENT], check=True)
    except subprocess.CalledProcessError as error:
        print(f"it could not be made: pip ended with {error.returncode}", file=sys.stderr)
        return 1
    write_text(place / "ready", f"{torch}\n{REQUIREMENT}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
