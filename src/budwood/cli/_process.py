"""What a budwood process settles before anything else is imported: its environment and its output streams.

The one place where environment variables are written. Each is a default: what the user has set stays.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

# Read by torch and its OpenMP runtime, by tokenizers and by the Hugging Face libraries when they are imported.
ALWAYS = {
    "OMP_WAIT_POLICY": "passive",  # spinning threads make two cores slower than one when anything else runs
    "TOKENIZERS_PARALLELISM": "false",  # else a warning at each fork of a data loader
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
UNLESS_VERBOSE = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "TORCH_LOGS": "-torch.utils._pytree",  # torchao 0.18 makes torch 2.13 warn each time it is imported
}


def prepare() -> None:
    """Set the environment, and streams that a reader may leave."""
    for name, value in (ALWAYS if is_verbose(sys.argv[1:]) else ALWAYS | UNLESS_VERBOSE).items():
        os.environ.setdefault(name, value)
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)


def is_verbose(words: Sequence[str]) -> bool:
    """Whether the words of a command line, not yet parsed, hold `-v`."""
    return any(word == "--verbose" or re.fullmatch("-[qv]*v[qv]*", word) for word in _flags(words))


def wants_json(words: Sequence[str]) -> bool:
    """Whether the words of a command line, not yet parsed, hold `--json`: a usage error comes before parsing ends."""
    return "--json" in _flags(words)


def _flags(words: Sequence[str]) -> Sequence[str]:
    return words[: words.index("--")] if "--" in words else words


class LastingStream(io.TextIOWrapper):
    """A text stream whose reader may leave (`budwood methods | head -1`): the rest goes nowhere, the work goes on.

    The exit code then says what the command did, not who listened. A character that the terminal cannot show is
    escaped.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream  # kept: when it goes, it closes the buffer
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=bool(stream.line_buffering),
        )

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def _lasting(stream: TextIO | None) -> LastingStream:
    return LastingStream(stream or open(os.devnull, "w"))  # None: the process was started with it closed
