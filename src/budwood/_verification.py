"""Does a saved adapter load, and do what it did when it was published? What is damaged is a check that failed."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from budwood import _published, facts
from budwood._exports import check_portable, portable
from budwood._saved import Loaded, Saved, native_base, repair
from budwood.errors import AdapterError, NotSupportedError
from budwood.export.checks import Check, VerifyReport
from budwood.export.logits import probe_inputs
from budwood.models.quantisation import is_quantised


def verify(saved: Saved, *, with_portable: bool) -> VerifyReport:
    """Check an adapter; see `Run.verify`."""
    try:
        loaded = saved.open()
    except AdapterError as error:  # to find this out is what was asked for
        action = repair(saved.path, saved.adapter) or error.action
        return VerifyReport((*_unchanged(saved), failed("it loads", error.got, action)))
    inputs = probe_inputs(loaded.tokenizer, seed=0)
    native = _published.verify(loaded.model, saved.adapter, native_base(loaded.base), inputs)
    report = VerifyReport((*_unchanged(saved), *map(_as_two_loads, native.checks)))
    return VerifyReport((*report.checks, *_portable_checks(saved, loaded))) if with_portable else report


def failed(name: str, problem: str, action: str) -> Check:
    """Return the check that failed with a problem, with what to do."""
    return Check(name, False, note="; ".join(part for part in (problem, action) if part))


def _portable_checks(saved: Saved, loaded: Loaded) -> tuple[Check, ...]:
    loaded = saved.open_plain(exact=False) if is_quantised(saved.source) else loaded
    with tempfile.TemporaryDirectory(prefix="budwood-") as folder:
        place = Path(folder) / "lora"
        try:
            _published.require_change_of_weights(saved.adapter, "lora")
            portable(saved, loaded, place)
        except NotSupportedError as error:
            return (Check("portable LoRA", True, "not possible", note=error.got),)
        return check_portable(saved, loaded, place, probe_inputs(loaded.tokenizer, seed=0)).checks


def _unchanged(saved: Saved) -> tuple[Check, ...]:
    """Check that the weights are the published ones, which were held against the trained model."""
    name = "the weights are those that were published"
    if not saved.facts or not saved.facts.adapter_sha256:
        return (Check(name, True, "not known", note="no hash was kept with this adapter"),)
    found = facts.weights_hash(saved.adapter)
    return (Check(name, found == saved.facts.adapter_sha256, found[:12], note="SHA-256 of the file"),)


def _as_two_loads(check: Check) -> Check:
    """Word a check of a loaded adapter for what it is: the trained model is gone, two loads are compared."""
    words = {
        "logits equal the trained model's": "two loads compute the same logits",
        "the base is the same": "two loads of the base agree",
    }
    return replace(check, name=words.get(check.name, check.name))
