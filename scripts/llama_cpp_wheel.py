"""Install llama-cpp-python into this environment, for the tests that run llama.cpp itself.

PyPI has its source only, so it is built once, as small as these tests need it, and the wheel (12 MB) is kept in
`${XDG_CACHE_HOME:-~/.cache}/budwood/wheels`. That takes 4 minutes of one core, and seconds from then on. Needs a C++
compiler. Fails without harm: the tests are then skipped and say so.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
TIMEOUT_S = 1800

# Not for this processor alone, because the wheel may outlive it; no image models; and none of the code of llama.cpp's
# programs, which its build file insists on unless a variable of the same name hides that wish.
ONLY_THE_LIBRARY = "set(LLAMA_BUILD_COMMON OFF)\n"
OPTIONS = (
    "-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF -DGGML_LLAMAFILE=OFF -DGGML_CPU_REPACK=OFF -DGGML_OPENMP=OFF "
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1"
)


def main() -> int:
    version = re.search(r"(?m)^llama_cpp_python==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"))[1]
    if installed() == version:
        return 0
    try:
        wheel = cached(version) or build(version)
        pip("install", "--quiet", "--constraint", str(CONSTRAINTS), str(wheel))
    except (subprocess.SubprocessError, OSError) as error:
        print(f"llama-cpp-python could not be installed; the tests that need it are skipped: {error}", file=sys.stderr)
        return 1
    return 0


def installed() -> str:
    """Return the version that is installed, or nothing."""
    try:
        return importlib.metadata.version("llama_cpp_python")
    except importlib.metadata.PackageNotFoundError:
        return ""


def place() -> Path:
    """Return the folder for wheels of these options."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "budwood" / "wheels" / hashlib.sha256((OPTIONS + ONLY_THE_LIBRARY).encode()).hexdigest()[:12]


def cached(version: str) -> Path | None:
    return next(place().glob(f"llama_cpp_python-{version}-*.whl"), None)


def build(version: str) -> Path:
    """Build the wheel and put it whole into the cache."""
    print(f"building llama-cpp-python {version}, once: minutes", flush=True)
    place().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place()) as folder:
        include = Path(folder) / "only_the_library.cmake"
        include.write_text(ONLY_THE_LIBRARY, encoding="utf-8")
        environment = {
            "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1),
            **os.environ,
            "CMAKE_ARGS": f"{OPTIONS} '-DCMAKE_PROJECT_llama_cpp_INCLUDE={include}'",
        }
        requirement = f"llama_cpp_python=={version}"
        pip(
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "llama-cpp-python",
            "-w",
            folder,
            requirement,
            environment=environment,
        )
        made = next(Path(folder).glob("*.whl"))
        return made.replace(place() / made.name)


def pip(*arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    subprocess.run(command, check=True, env=environment, timeout=TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main())
