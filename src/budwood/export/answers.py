"""Does a saved result that is no PEFT adapter do what the trained one did? In a fresh process, bit by bit.

What there is to compare the method says itself (`tuning.lesson.Format.answers`); this room only asks for it twice.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from budwood.export.checks import Check, VerifyReport, bit_equal, differs, listed
from budwood.export.verify import TIMEOUT_S, NativeBase, ask_tensors

BASE = "base"  # the name of the base's own logits among the answers


def verify_answers(
    answers: Mapping[str, Tensor],
    method: str,
    folder: Path,
    base: NativeBase,
    inputs: Int[Tensor, "b t"],
    *,
    device: torch.device,
    timeout_s: float = TIMEOUT_S,
) -> VerifyReport:
    """Load the saved `folder` in a fresh process and compare its answers with those of the trained model.

    Args:
        answers: of the trained model, by name; "base" are the base's logits.
        method: the name of the method, whose format reads the folder.
        folder: what was saved.
        base: how the fresh process loads the base.
        inputs: token ids, from `probe_inputs`.
        device: where the trained model computed its answers.
        timeout_s: how long the fresh process may take.
    """
    request = {
        "method": method,
        "reference": base.reference,
        "adapter": str(Path(folder).absolute()),
        "dtype": base.dtype,
        "device": str(device),
        "attention": base.attention,
        "trust_remote_code": base.trust_remote_code,
    }
    command = [sys.executable, "-P", "-m", "budwood.export.answers_probe"]
    found = ask_tensors(command, request, inputs, timeout_s)
    if isinstance(found, Check):
        return VerifyReport((found,))
    loaded, _ = found
    checks = [
        Check("a fresh process loads it", True),
        listed("it gives the same answers", sorted(answers.keys() ^ loaded.keys())),
    ]
    for name in sorted(answers.keys() & loaded.keys(), key=list(answers).index):
        checks.append(bit_equal(f"{name}: the same bits as the trained model", answers[name], loaded[name]))
        if name != BASE and loaded[name].shape == loaded[BASE].shape:
            checks.append(differs(f"{name}: differs from the base", loaded[BASE], loaded[name]))
    return VerifyReport(tuple(checks))
