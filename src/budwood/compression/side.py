"""llm-compressor in an environment of its own: files in, files out, one process.

It asks for an older transformers than budwood runs on, so the two cannot share an environment.
`scripts/side_environment.py` makes that environment once; without it the engine is refused with that line.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from safetensors.torch import save_file
from torch import Tensor

from budwood.compression.settings import Compression
from budwood.errors import NotSupportedError
from budwood.storage import cache_dir, write_json

REQUIREMENT = "llmcompressor==0.14.0.1"
PROGRAM = Path(__file__).with_name("llm_compressor_program.py")
METHODS = ("gptq", "sparsegpt", "wanda")  # that are asked of llm-compressor


def environment() -> Path:
    """Return the folder of the side environment, whether it exists or not."""
    return cache_dir() / "environments" / REQUIREMENT.replace("==", "-")


def side_python() -> Path:
    """Return the interpreter of the side environment.

    Raises:
        NotSupportedError: it was not made yet.
    """
    found = environment() / "bin" / "python"
    if not (environment() / "ready").exists():
        raise NotSupportedError(
            f"llm-compressor is not installed in {environment()}",
            wanted="its own environment: it needs an older transformers than budwood",
            action="python scripts/side_environment.py in a checkout of budwood, or leave --engine out",
        )
    return found


def check(settings: Compression) -> None:
    """Refuse what llm-compressor is not asked to do.

    Raises:
        NotSupportedError: the method is not one of `METHODS`, or the environment is missing.
    """
    if settings.method not in METHODS:
        raise NotSupportedError(
            f"--engine llm-compressor with the method {settings.method}",
            wanted=f"one of {', '.join(METHODS)}",
            action="leave --engine out: budwood's own is exact",
        )
    side_python()


def run(settings: Compression, source: Path, windows: Int[Tensor, "n t"], out: Path, *, ignore: Sequence[str]) -> None:
    """Let llm-compressor compress the model in `source` into the folder `out`.

    Args:
        settings: method, bits, group, symmetry, sparsity, pattern, damping, act-order and precision are passed on.
        source: an ordinary model folder.
        windows: token ids to calibrate on.
        out: the folder to write; it exists.
        ignore: names of linear layers that stay as they are.

    Raises:
        NotSupportedError: llm-compressor failed; its last line is in the message.
    """
    with tempfile.TemporaryDirectory(prefix="budwood-side-") as place:
        save_file({"input_ids": windows.to(torch.int64).contiguous()}, Path(place) / "windows.safetensors")
        write_json(Path(place) / "request.json", _request(settings, source, out, ignore))
        done = subprocess.run(
            [str(side_python()), "-I", str(PROGRAM), place],
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise NotSupportedError(
            f"llm-compressor failed: {lines[-1] if lines else f'exit code {done.returncode}'}",
            action="leave --engine out: budwood's own needs nothing else",
        )


def _request(settings: Compression, source: Path, out: Path, ignore: Sequence[str]) -> dict[str, Any]:
    pattern = settings.pattern
    return settings.to_dict() | {
        "source": str(source),
        "out": str(out.absolute()),
        "ignore": list(ignore),
        "dropped_of": f"{pattern.of - pattern.kept}:{pattern.of}" if pattern else None,
    }
