"""Text to windows of tokens: some to calibrate on, others, from later in the text, to measure on.

Windows are of one length and lie side by side in the text, documents one after another; each begins as the tokenizer
begins a text (mostly one BOS). The last tenth is held out, or more where that is too little to measure on, so no
measured window was calibrated on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from budwood.compression.settings import Compression
from budwood.data.documents import read_documents
from budwood.data.problems import Origin
from budwood.data.render import UNTRAINED, Encoded
from budwood.data.tokens import TokenIds
from budwood.errors import DataError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HELD_OUT = 0.1  # of the windows, at least one
FEWEST_TOKENS = 4096  # held out, where that is no more than half of the text: with fewer the NLL says little
MOST_HELD_OUT = 32  # windows that are measured on, or more where those hold fewer tokens than that
SHORTEST = 8  # tokens of a window


@dataclass(frozen=True)
class Calibration:
    """What the text gives.

    Attributes:
        windows: token ids to calibrate on.
        held_out: windows to measure on.
        beginning: how many tokens at the start of each window are not of the text.
        files: the paths as given.
        digest: SHA-256 over the documents.
    """

    windows: Int[Tensor, "n t"]
    held_out: Int[Tensor, "m t"]
    beginning: int
    files: tuple[str, ...]
    digest: str

    def encoded(self) -> list[Encoded]:
        """Return the held-out windows as rows for `evals.likelihood`."""
        made = []
        for i, window in enumerate(self.held_out.tolist()):
            learned = [j >= self.beginning for j in range(len(window))]
            labels = [token if counts else UNTRAINED for token, counts in zip(window, learned)]
            made.append(Encoded(window, labels, [float(counts) for counts in learned], Origin(self.files[0]), i))
        return made

    def to_dict(self) -> dict[str, Any]:
        """The text as `compression.json` describes it: what it was, not what it says."""
        return {
            "files": [Path(file).name for file in self.files],
            "digest": self.digest,
            "windows": len(self.windows),
            "held_out": len(self.held_out),
            "held_out_tokens": self.held_out[:, max(1, self.beginning) :].numel(),
            "tokens": self.windows.numel(),
            "length": self.windows.shape[1],
        }


def read_calibration(
    paths: Sequence[Path], tokenizer: PreTrainedTokenizerBase, settings: Compression, *, longest: int | None = None
) -> Calibration:
    """Read text and divide it.

    Args:
        paths: files and folders, as `read_documents` takes them.
        tokenizer: the model's.
        settings: `samples`, `length` and `seed` are used.
        longest: tokens that the model was made for; None where there is no end.

    Raises:
        DataError: a file cannot be read, or there is less text than two windows.
        UsageError: windows are longer than the model's context, or too short to say anything.
    """
    length = settings.length
    if length < SHORTEST or (longest is not None and length > longest):
        raise UsageError(f"--length {length}", wanted=f"{SHORTEST} to {longest or 'any number of'} tokens")
    found = read_documents(tuple(paths))
    ids = TokenIds(tokenizer)
    beginning = ids.beginning
    stream = [token for text in ids.encode([one.text for one in found.documents]) for token in text[len(beginning) :]]
    step = length - len(beginning)
    windows = [beginning + stream[i : i + step] for i in range(0, len(stream) - step + 1, step)]
    if len(windows) < 2:
        raise DataError(
            f"the text to calibrate on has {len(stream):,} tokens",
            wanted=f"at least {2 * step:,}: a window of {length} to calibrate on, and one to measure on",
            action="give more text, or a smaller --length",
        )
    return Calibration(*_divided(windows, settings), len(beginning), tuple(map(str, paths)), found.digest)


def _divided(windows: list[list[int]], settings: Compression) -> tuple[Tensor, Tensor]:
    """Return the windows to calibrate on, drawn by seed and in the order of the text, and the held-out ones."""
    enough = math.ceil(FEWEST_TOKENS / settings.length)
    count = max(1, round(HELD_OUT * len(windows)), min(enough, len(windows) // 2))
    seen, later = windows[:-count], windows[-count:]
    draw = random.Random(settings.seed)
    drawn = sorted(draw.sample(range(len(seen)), min(settings.samples, len(seen))))
    measured = sorted(draw.sample(range(count), min(max(MOST_HELD_OUT, enough), count)))
    return torch.tensor([seen[i] for i in drawn]), torch.tensor([later[i] for i in measured])
