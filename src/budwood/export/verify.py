"""Does a saved adapter do what the trained one did? Two levels, each in a fresh process.

Native: PEFT with our tuners registered loads the run's `adapter/`; the keys of the file are exactly the parameters of
the adapter, the logits have the same bits as the trained model's, and they differ from the base's.

Portable: a process that never imports budwood loads an export with plain transformers and PEFT; the logits agree to
rounding, because an export computes the same ΔW in another order of operations.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file
from torch import Tensor

from budwood.errors import UsageError
from budwood.export.checks import Check, VerifyReport, bit_equal, close, close_in_16_bits, differs, listed
from budwood.export.foreign import inspect_adapter
from budwood.export.logits import adapted_logits, base_logits
from budwood.export.static import static_checks
from budwood.storage import guarded

PORTABLE_PROBE = Path(__file__).with_name("portable_probe.py")
# Both probes run with -P: neither the working directory nor this folder may shadow an import of theirs.
TIMEOUT_S = 1800.0
LAST_LINES = 8  # of a crashed child's standard error: the exception and where it was raised


@dataclass(frozen=True)
class NativeBase:
    """How the fresh process gets the base that the trained model has.

    Args:
        reference: the model reference, as `budwood.models.load_base` takes it.
        dtype: `float32`, `bfloat16` or `float16`.
        attention: the implementation that the trained model uses.
        trust_remote_code: whether code beside the weights may run, as it did for the trained model.
        register: `module:function` that makes our tuners known to PEFT; empty for PEFT's own tuners.
    """

    reference: str
    dtype: str = "float32"
    attention: str = "auto"
    trust_remote_code: bool = False
    register: str = "budwood.peft:register"


def verify_native(
    model: PeftModel,
    folder: Path,
    base: NativeBase,
    inputs: Int[Tensor, "b t"],
    *,
    adapter: str = "default",
    timeout_s: float = TIMEOUT_S,
) -> VerifyReport:
    """Load the saved `folder` in a fresh process and compare with the trained `model`, bit by bit.

    Args:
        model: the trained model; modes, trainability and weights are left as they are.
        folder: the saved adapter.
        base: how the fresh process loads the base.
        inputs: token ids, from `probe_inputs`.
        adapter: the one active adapter of `model`.
        timeout_s: how long the fresh process may take.

    Raises:
        UsageError: `adapter` is not the one active adapter, or it is merged.
    """
    _require_alone(model, adapter)
    device = next(model.parameters()).device
    ids = inputs.to(device)
    trained, plain = adapted_logits(model, ids), base_logits(model, ids)
    request = {
        "register": base.register,
        "reference": base.reference,
        "adapter": str(Path(folder).absolute()),
        "dtype": base.dtype,
        "device": str(device),
        "attention": base.attention,
        "trust_remote_code": base.trust_remote_code,
        "autocast": _in_fp32(model, adapter),
    }
    command = [sys.executable, "-P", "-m", "budwood.export.native_probe"]
    answer = ask(command, request, inputs, timeout_s)
    if isinstance(answer, Check):
        return VerifyReport((answer,))
    parameters, stored = set(answer.result["parameters"]), set(answer.result["file"])
    return VerifyReport(
        (
            Check("a fresh process loads it", True),
            listed("no parameter is missing from the file", sorted(parameters - stored)),
            listed("no tensor of the file is left over", sorted(stored - parameters)),
            bit_equal("the base is the same", plain, answer.base),
            bit_equal("logits equal the trained model's", trained, answer.adapted),
            differs("logits differ from the base's", answer.base, answer.adapted),
        )
    )


def verify_portable(
    folder: Path,
    base_folder: Path,
    reference_logits: Float[Tensor, "b t v"],
    inputs: Int[Tensor, "b t"],
    dtype: torch.dtype = torch.float32,
    *,
    exact: Callable[[], Float[Tensor, "b t v"]] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> VerifyReport:
    """Check the file of an export, then load it without budwood and compare with the trained model's logits.

    Args:
        folder: the export.
        base_folder: the base, as plain transformers loads it.
        reference_logits: of the trained model at `inputs`, with the base in `dtype`. fp32 finds any fault; in 16 bits
            a weak adapter can drown in rounding, which the check then says.
        inputs: token ids, from `probe_inputs`.
        dtype: of the base.
        exact: computes the trained model's logits in 64 bits, for models whose fp32 is itself farther from them than
            the tolerance; see `checks.close`.
        timeout_s: how long the fresh process may take.

    Raises:
        AdapterError: the folder cannot be read.
    """
    info = inspect_adapter(folder)
    static = static_checks(info.config, info.keys)
    request = {
        "base": str(Path(base_folder).absolute()),
        "adapter": str(Path(folder).absolute()),
        "dtype": str(dtype).removeprefix("torch."),
    }
    answer = ask([sys.executable, "-P", str(PORTABLE_PROBE)], request, inputs, timeout_s)
    if isinstance(answer, Check):
        return VerifyReport((*static, answer))
    return VerifyReport(
        (
            *static,
            Check("a fresh process loads it", True),
            listed("budwood is not imported there", [name for name in answer.result["imported"] if name == "budwood"]),
            listed("no parameter is missing from the file", answer.result["missing"]),
            listed("no tensor of the file is left over", answer.result["unexpected"]),
            _agreement(reference_logits.cpu(), answer, dtype, exact),
            differs("logits differ from the base's", answer.base, answer.adapted),
        )
    )


def _agreement(reference: Tensor, answer: Answer, dtype: torch.dtype, exact: Callable[[], Tensor] | None) -> Check:
    name = "logits agree with the trained model's"
    if dtype == torch.float32:
        return close(name, reference, answer.adapted, exact)
    return close_in_16_bits(name, reference, answer.adapted, answer.exact, answer.base)


def _require_alone(model: PeftModel, adapter: str) -> None:
    """Refuse what would make a comparison meaningless: other adapters taking part, or ΔW inside the base weights."""
    if model.active_adapters != [adapter]:
        raise UsageError(
            f"the active adapters are {model.active_adapters}", wanted=f"only {adapter!r}", action="call set_adapter"
        )
    if any(isinstance(layer, BaseTunerLayer) and layer.merged for layer in model.modules()):
        raise UsageError("the adapter is merged into the base", action="call unmerge_adapter before verifying")


def _in_fp32(model: PeftModel, adapter: str) -> bool:
    """Whether the adapter's own parameters are fp32, which is what PEFT makes of them unless told otherwise."""
    state = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False)
    return all(tensor.dtype == torch.float32 for tensor in state.values())


@dataclass(frozen=True)
class Answer:
    """What a probe found: logits with and without the adapter, and what it says about its loading."""

    adapted: Tensor
    base: Tensor
    exact: Tensor  # `adapted` computed in fp32 from the same weights
    result: dict[str, Any]


def ask(command: list[str], request: dict[str, Any], inputs: Tensor, timeout_s: float) -> Answer | Check:
    """Run a probe with `request`; return its answer, or the failed check that says how it ended."""
    found = ask_tensors(command, request, inputs, timeout_s)
    if isinstance(found, Check):
        return found
    outputs, result = found
    return Answer(outputs["adapted"], outputs["base"], outputs.get("exact", outputs["adapted"]), result)


def ask_tensors(
    command: list[str], request: dict[str, Any], inputs: Tensor, timeout_s: float
) -> tuple[dict[str, Tensor], dict[str, Any]] | Check:
    """As `ask`, for a probe that writes tensors of any names: return those, and the result."""
    with tempfile.TemporaryDirectory(prefix="budwood-verify-") as place, guarded(place):
        folder = Path(place)
        files = {name: str(folder / name) for name in ("inputs", "outputs", "result")}
        save_file({"input_ids": inputs.cpu().contiguous()}, files["inputs"])
        path = folder / "request.json"
        path.write_text(json.dumps({**request, **files, "threads": torch.get_num_threads()}), encoding="utf-8")
        failure = _run([*command, str(path)], timeout_s)
        if failure:
            return Check("a fresh process loads it", False, note=failure)
        return load_file(files["outputs"]), json.loads(Path(files["result"]).read_text(encoding="utf-8"))


def _run(command: list[str], timeout_s: float) -> str:
    """Run `command` to its end; return what went wrong, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"it did not finish within {timeout_s:g} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return f"it ended with {done.returncode}: " + "\n".join(lines[-LAST_LINES:])
