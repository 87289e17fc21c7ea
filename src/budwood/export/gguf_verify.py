"""Is a GGUF LoRA what the trained adapter is? Read back as data, and run by llama.cpp where that is installed."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor

from budwood.errors import AdapterError, NotSupportedError, StorageError
from budwood.export.checks import Check, VerifyReport, differs, listed, max_difference
from budwood.export.dequantised import quantisation_name
from budwood.export.gguf_base import fp32_gguf
from budwood.export.gguf_lora import FILE_TYPES
from budwood.export.gguf_names import GgufNames
from budwood.export.logits import adapted_logits, base_logits
from budwood.export.verify import TIMEOUT_S, Answer, ask
from budwood.models.quantisation import is_quantised
from budwood.models.source import Source
from budwood.tuning.factors import LoraFactors, lora_factors

PROBE = Path(__file__).with_name("llamacpp_probe.py")
# Largest difference of a logit in fp32: 1e-3, or this share of the adapter's largest effect on a logit, for adapters
# that drive the model to where rounding errors grow. Measured on SmolLM2-135M: 6e-5 to 1e-4 at effects of 5 to 7, and
# 1e-3 at an effect of 40. A wrong order of rows in q and k costs a fifth of the effect and more.
LIMIT, SHARE = 1e-3, 1e-4
# 16-bit factors make llama.cpp round what enters A and B, so a part of the adapter's effect is lost: this many
# roundings of the effect are let pass. Measured on SmolLM2-135M: 0.3 to 0.9.
ROUNDINGS = 4.0
RUN = "llama.cpp computes what PyTorch computes"


def llama_cpp_installed() -> bool:
    """Whether llama-cpp-python is there; it is not imported."""
    return importlib.util.find_spec("llama_cpp") is not None


def verify_gguf(
    path: Path,
    model: PeftModel,
    source: Source,
    inputs: Int[Tensor, "b t"],
    *,
    adapter: str = "default",
    timeout_s: float = TIMEOUT_S,
) -> VerifyReport:
    """Compare a GGUF LoRA with the adapter of `model`: what it holds, and what llama.cpp computes with it.

    Args:
        path: the GGUF LoRA.
        model: the trained model, its base in fp32 and of plain layers; it is left as it is.
        source: where the base came from. llama.cpp gets it as a GGUF file in fp32, made for the comparison.
        inputs: token ids, from `probe_inputs`.
        adapter: the one active adapter of `model`.
        timeout_s: how long llama.cpp may take.

    Returns:
        The checks of the file; then either those of llama.cpp's logits, or one that says why llama.cpp was not run.

    Raises:
        AdapterError: the file cannot be read.
    """
    checks = check_file(path, GgufNames(model.get_base_model()), lora_factors(model, adapter))
    if reason := _not_run(model, source):
        return VerifyReport((*checks, _skipped(reason)))
    with tempfile.TemporaryDirectory(prefix="budwood-gguf-") as place:
        try:
            base = fp32_gguf(source, model.get_base_model(), Path(place) / "base.gguf")
        except (NotSupportedError, StorageError) as error:
            return VerifyReport((*checks, _skipped(error.got)))
        answer = run_llama_cpp(base, path, inputs, timeout_s)
    if isinstance(answer, Check):
        return VerifyReport((*checks, answer))
    trained, plain = adapted_logits(model, inputs), base_logits(model, inputs)
    return VerifyReport(
        (
            *checks,
            _close(f"the base in llama.cpp {answer.result['version']} is the same", plain, answer.base, LIMIT),
            _close(RUN, trained, answer.adapted, _limit(path, trained, plain)),
            differs("logits differ from the base's", answer.base, answer.adapted),
        )
    )


def run_llama_cpp(
    base: Path, adapter: Path, inputs: Int[Tensor, "b t"], timeout_s: float = TIMEOUT_S
) -> Answer | Check:
    """Return llama.cpp's logits with and without the adapter, from a fresh process; or the check that failed.

    Args:
        base: a GGUF file.
        adapter: a GGUF LoRA for it.
        inputs: token ids.
        timeout_s: how long it may take.
    """
    request = {"base": str(base), "adapter": str(Path(adapter).absolute())}
    return ask([sys.executable, "-P", str(PROBE)], request, inputs, timeout_s)


def check_file(path: Path, names: GgufNames, factors: Mapping[str, LoraFactors]) -> tuple[Check, ...]:
    """Read a GGUF LoRA back and compare names, shapes, scale and every number with the adapter's factors.

    Args:
        path: the file.
        names: of the base.
        factors: by the name of each module, B in transformers' order of rows.

    Raises:
        AdapterError: the file cannot be read.
    """
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise AdapterError(f"{path} cannot be read: {error}", wanted="a whole GGUF file") from error
    found = {tensor.name: tensor for tensor in reader.tensors}
    expected = {names.tensor(f"{module}.weight"): pair for module, pair in factors.items()}
    wanted = {f"{name}.{suffix}" for name in expected for suffix in ("lora_a", "lora_b")}
    heads = {
        "general.type": "adapter",
        "general.architecture": names.architecture,
        "adapter.type": "lora",
        "adapter.lora.alpha": float(max(pair.A.shape[0] for pair in factors.values())),
    }
    said = {key: reader.fields[key].contents() for key in heads if key in reader.fields}
    return (
        listed("the head says what llama.cpp reads", [key for key, value in heads.items() if said.get(key) != value]),
        listed("no factor is missing from the file", sorted(wanted - found.keys())),
        listed("no tensor of the file is left over", sorted(found.keys() - wanted)),
        listed("the factors are the adapter's", _different(found, names, expected)),
    )


def _different(
    found: Mapping[str, gguf.ReaderTensor], names: GgufNames, expected: Mapping[str, LoraFactors]
) -> list[str]:
    """Return the weights whose factors in the file, in transformers' order of rows, are not the expected ones."""
    different = []
    for name, (a, b) in expected.items():
        if f"{name}.lora_a" not in found or f"{name}.lora_b" not in found:
            continue
        stored_a, stored_b = (found[f"{name}.{suffix}"] for suffix in ("lora_a", "lora_b"))
        read_a = gguf.quants.dequantize(stored_a.data, stored_a.tensor_type)
        read_b = names.from_gguf(name, gguf.quants.dequantize(stored_b.data, stored_b.tensor_type))
        dtype = next((dtype for dtype, kinds in FILE_TYPES.items() if kinds[0] == stored_a.tensor_type), torch.float32)
        if not (_equal(a, read_a, dtype) and _equal(b.T, read_b.T, dtype)):
            different.append(name)
    return different


def _equal(factor: Tensor, read: np.ndarray, dtype: torch.dtype) -> bool:
    """Whether `read` (rank, n) is `factor` (r, n) in the file's precision, followed by zeros."""
    wanted = factor.cpu().to(dtype).float().numpy()
    rank = wanted.shape[0]
    same_shape = read.ndim == 2 and read.shape[0] >= rank and read.shape[1] == wanted.shape[1]
    return same_shape and np.array_equal(read[:rank], wanted) and not read[rank:].any()


def _not_run(model: PeftModel, source: Source) -> str:
    """Return why llama.cpp cannot be asked, or nothing."""
    if not llama_cpp_installed():
        return "llama-cpp-python is not installed: pip install 'budwood[llamacpp]'"
    if is_quantised(source):
        return f"the base is quantised ({quantisation_name(source)}) in a way that GGUF does not have"
    if any(parameter.dtype != torch.float32 for parameter in model.get_base_model().parameters()):
        return "the base is not in fp32"
    return ""


def _skipped(reason: str) -> Check:
    return Check(RUN, True, "not checked", note=reason)


def _limit(path: Path, trained: Tensor, plain: Tensor) -> float:
    kind = gguf.GGUFReader(path).tensors[0].tensor_type
    dtype = next(dtype for dtype, kinds in FILE_TYPES.items() if kinds[0] == kind)
    share = SHARE if dtype == torch.float32 else ROUNDINGS * torch.finfo(dtype).eps
    return max(LIMIT, share * max_difference(trained, plain))


def _close(name: str, reference: Float[Tensor, "b t v"], other: Float[Tensor, "b t v"], limit: float) -> Check:
    if reference.shape != other.shape:
        return Check(name, False, f"{tuple(other.shape)} instead of {tuple(reference.shape)}")
    difference = max_difference(reference, other)
    return Check(name, difference <= limit, difference, limit, "largest difference of a logit, all positions")
