"""On which device a base runs, and in which precision. `auto` takes what is fast there and safe to train in."""

from __future__ import annotations

import torch

from budwood.errors import ModelError, UsageError, nearest

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}


def choose_device(device: str = "auto") -> torch.device:
    """Return the device to run on: for "auto" a CUDA device, else Apple's GPU, else the CPU.

    Args:
        device: "auto", "cpu", "mps", "cuda" or "cuda:1".

    Raises:
        UsageError: not a device's name.
        ModelError: a device that this machine or this build of torch does not have.
    """
    if device == "auto":
        return torch.device(next((kind for kind in ("cuda", "mps") if _count(kind)), "cpu"))
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda", "mps") or not (index.isdecimal() or (index == "" and device == kind)):
        raise UsageError(
            f"no device called {device!r}", wanted=nearest(device, ["auto", "cpu", "cuda", "cuda:0", "mps"])
        )
    if int(index or 0) >= _count(kind):
        raise ModelError(
            f"the device {device} is not available here",
            wanted=f"one of {', '.join(_available())}",
            action="choose another device, or 'auto'; for a GPU, check its driver and that torch was built for it",
        )
    return torch.device(device)


def _count(kind: str) -> int:
    """How many devices of this kind can be used."""
    if kind == "cuda":
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    return int(torch.backends.mps.is_available()) if kind == "mps" else 1


def _available() -> list[str]:
    return ["cpu", *(f"cuda:{i}" for i in range(_count("cuda"))), *(["mps"] if _count("mps") else [])]


def choose_dtype(dtype: str | torch.dtype = "auto", device: torch.device | str = "cpu") -> torch.dtype:
    """Return the precision of the base's weights.

    "auto" is bf16 where the hardware multiplies in bf16 (CUDA from Ampere on, CPUs with AMX or AVX512-BF16), else
    fp32. It is never fp16, which overflows in training, and fp32 on MPS, where bf16 saves memory but no time.

    Raises:
        UsageError: not the name of a precision.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.bfloat16 if _multiplies_bf16(torch.device(device).type) else torch.float32
    if dtype.removeprefix("torch.") not in DTYPES:
        raise UsageError(f"no precision called {dtype!r}", wanted=nearest(dtype, ["auto", *DTYPES]))
    return DTYPES[dtype.removeprefix("torch.")]


def _multiplies_bf16(kind: str) -> bool:
    """Whether bf16 is a gain on this kind of device.

    mkldnn says yes on every CPU with AVX-512, also where it converts to fp32 and back, so one of the two extensions
    that multiply in bf16 is asked for as well. Measured with AMX: a training step of SmolLM2-135M (LoRA on q and v,
    8 x 64 tokens) is 2.1 times as fast as in fp32. Measured with AVX512-BF16: a training step of the same model is 2.7
    times as fast; a matmul does 490 GFLOP/s on one core, in fp32 112.
    """
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if kind != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    multiplies = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return bool(multiplies and torch.ops.mkldnn._is_mkldnn_bf16_supported())
