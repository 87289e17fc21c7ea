"""What a verification says (`Check`, `VerifyReport`), and the comparisons of logits that it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from budwood.errors import VerificationError

# fp32: the largest difference of a logit, relative to the largest logit where that exceeds 1.
FP32_TOLERANCE = 1e-5
# 16 bits: how many times as far apart as rounding alone puts a model and itself in fp32. GIFT exports of SmolLM2-135M
# in bf16 lie at 1.1 to 1.6, because both sides are rounded.
ROUNDINGS = 4.0
MEAN_KL_FLOOR = 1e-5  # nats per token: below this nothing is worth a complaint


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        name: what was looked at, in a few words.
        ok: whether it is as it must be.
        value: what was measured.
        limit: what it may be at most, where it is a number with a limit.
        note: what the reader must know.
    """

    name: str
    ok: bool
    value: float | int | str | bool | None = None
    limit: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The check as JSON has it: a number that is not finite becomes text."""
        return {name: str(v) if isinstance(v, float) and not math.isfinite(v) else v for name, v in vars(self).items()}

    def __str__(self) -> str:
        value = f"{self.value:.3g}" if isinstance(self.value, float) else self.value
        parts = [
            f"{'ok  ' if self.ok else 'FAIL'} {self.name}",
            "" if value is None else f": {value}",
            "" if self.limit is None else f" (limit {self.limit:.3g})",
            f"; {self.note}" if self.note else "",
        ]
        return "".join(parts)


@dataclass(frozen=True)
class VerifyReport:
    """The checks of one verification, in the order in which they were made."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every check passed. A report without checks says nothing and is not ok."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The report as `--json` prints it and `metrics.json` keeps it."""
        return {"ok": self.ok, "checks": [check.to_dict() for check in self.checks]}

    def __str__(self) -> str:
        return "\n".join(str(check) for check in self.checks)

    def require(self) -> VerifyReport:
        """Return the report if it is ok.

        Raises:
            VerificationError: a check failed; the message lists those that did.
        """
        if self.ok:
            return self
        failed = [str(check) for check in self.checks if not check.ok]
        raise VerificationError(
            "the adapter did not pass its verification:\n  " + "\n  ".join(failed or ["no check was made"]),
            wanted="a saved adapter that does exactly what the trained one did",
            action="do not use the folder; the message above says where it differs",
        )


def bit_equal(name: str, trained: Float[Tensor, "b t v"], loaded: Float[Tensor, "b t v"]) -> Check:
    """Check that two results have the same bits; the value is their largest difference."""
    if trained.shape != loaded.shape or trained.dtype != loaded.dtype:
        what = f"{tuple(loaded.shape)} {loaded.dtype} instead of {tuple(trained.shape)} {trained.dtype}"
        return Check(name, False, what)
    return Check(name, torch.equal(trained, loaded), max_difference(trained, loaded), 0.0)


def differs(name: str, base: Float[Tensor, "b t v"], adapted: Float[Tensor, "b t v"]) -> Check:
    """Check that an adapter changes something at the probe inputs.

    Soft prompts put positions before the text; the last positions, those of the text, are compared.
    """
    difference = max_difference(base, adapted[:, -base.shape[1] :])
    scale = max(1.0, base.abs().max().item())
    if difference == 0:
        return Check(name, False, difference, note="the adapter changes nothing: was it trained?")
    weak = "the adapter changes almost nothing" if difference < FP32_TOLERANCE * scale else ""
    return Check(name, True, difference, note=weak)


def close(
    name: str,
    reference: Float[Tensor, "b t v"],
    other: Float[Tensor, "b t v"],
    exact: Callable[[], Float[Tensor, "b t v"]] | None = None,
) -> Check:
    """Check fp32 logits that were computed in another order of operations, by their largest difference.

    Where a model has activations of thousands, fp32 itself is farther from the exact result than the tolerance, and no
    order of operations is the right one. Then the two are held against the result in 64 bits: `other` may not be
    farther from it than `reference` is.

    Args:
        exact: computes the reference's logits in 64 bits; asked only where the tolerance is exceeded.
    """
    if reference.shape != other.shape:
        return Check(name, False, f"{tuple(other.shape)} instead of {tuple(reference.shape)}")
    difference = max_difference(reference, other)
    limit = FP32_TOLERANCE * max(1.0, reference.abs().max().item())
    note = "largest difference of a logit"
    if exact is not None and math.isfinite(difference) and difference > limit:
        truth = exact()
        difference, limit = max_difference(truth, other), max(limit, max_difference(truth, reference))
        note = "largest difference from the result in 64 bits; the limit is the trained adapter's own"
    return Check(name, math.isfinite(difference) and difference <= limit, difference, limit, note)


def close_in_16_bits(
    name: str,
    reference: Float[Tensor, "b t v"],
    other: Float[Tensor, "b t v"],
    exact: Float[Tensor, "b t v"],
    base: Float[Tensor, "b t v"],
) -> Check:
    """Check 16-bit logits by mean KL per token, against what rounding alone does to this model at these inputs.

    Args:
        name: of the check.
        reference: of the trained model.
        other: of the loaded model.
        exact: of the loaded model, the same 16-bit weights computed in fp32.
        base: of the base; where it is within the limit too, 16 bits cannot tell and the note says so.
    """
    if reference.shape != other.shape:
        return Check(name, False, f"{tuple(other.shape)} instead of {tuple(reference.shape)}")
    kl, rounding, kl_of_base = mean_kl(reference, other), mean_kl(exact, other), mean_kl(reference, base)
    limit = max(MEAN_KL_FLOOR, ROUNDINGS * rounding)
    note = (
        f"mean KL per token; {kl_of_base:.3g} for the base; largest difference {max_difference(reference, other):.3g}"
    )
    if kl_of_base <= limit:
        note += "; 16 bits cannot tell this adapter from none: verify in float32"
    return Check(name, math.isfinite(kl) and kl <= limit, kl, limit, note)


def max_difference(a: Tensor, b: Tensor) -> float:
    """Return max |a - b|, computed in fp32; infinite where either has a NaN, so that no limit lets it pass."""
    difference = (a.float() - b.float()).abs().max().item()
    return difference if difference == difference else float("inf")


def mean_kl(reference: Float[Tensor, "b t v"], other: Float[Tensor, "b t v"]) -> float:
    """Return the mean over tokens of KL(reference || other) in nats; infinite where either has a NaN."""
    p, q = (logits.double().log_softmax(-1) for logits in (reference, other))
    kl = (p.exp() * (p - q)).sum(-1).mean().item()
    return kl if kl == kl else float("inf")


def listed(name: str, wrong: list[str]) -> Check:
    """Check that a list of things that are wrong is empty; the note shows the first five."""
    shown = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
    return Check(name, not wrong, len(wrong), note=shown)
