"""Devices and precisions, with the hardware's answers replaced."""

from __future__ import annotations

import pytest
import torch

from budwood.errors import ModelError, UsageError
from budwood.models import choose_device, choose_dtype


@pytest.fixture
def machine(monkeypatch):
    """Sets what torch says about the machine."""

    def describe(*, cuda=0, mps=False, cuda_bf16=False, mkldnn_bf16=False, amx=False, avx=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: cuda_bf16)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: mkldnn_bf16, raising=False)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx)

    describe()
    return describe


@pytest.mark.parametrize(("has", "device"), [({}, "cpu"), ({"mps": True}, "mps"), ({"cuda": 1, "mps": True}, "cuda")])
def test_auto_device(machine, has, device):
    machine(**has)
    assert choose_device("auto") == torch.device(device)


def test_explicit_devices(machine):
    machine(cuda=2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cuda") == torch.device("cuda")
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "mps"])
def test_a_device_that_is_not_there(machine, device):
    with pytest.raises(ModelError, match=rf"(?s){device} is not available here.*one of cpu"):
        choose_device(device)


def test_an_index_beyond_the_last(machine):
    machine(cuda=2)
    with pytest.raises(ModelError, match=r"(?s)cuda:2 is not available.*cpu, cuda:0, cuda:1"):
        choose_device("cuda:2")


@pytest.mark.parametrize("device", ["cudo", "gpu", "cuda:", "cuda:x", "cuda:-1", ""])
def test_no_device_at_all(machine, device):
    with pytest.raises(UsageError, match="no device called"):
        choose_device(device)


@pytest.mark.parametrize(
    ("has", "device", "dtype"),
    [
        ({}, "cpu", torch.float32),
        ({"mkldnn_bf16": True}, "cpu", torch.float32),  # AVX-512 that converts: no gain
        ({"mkldnn_bf16": True, "amx": True}, "cpu", torch.bfloat16),
        ({"mkldnn_bf16": True, "avx": True}, "cpu", torch.bfloat16),
        ({"amx": True}, "cpu", torch.float32),
        ({"avx": True}, "cpu", torch.float32),
        ({"cuda": 1, "cuda_bf16": True}, "cuda:0", torch.bfloat16),
        ({"cuda": 1}, "cuda", torch.float32),
        ({"mps": True}, "mps", torch.float32),
    ],
)
def test_auto_dtype(machine, has, device, dtype):
    machine(**has)
    assert choose_dtype("auto", device) == dtype


@pytest.mark.parametrize("name", ["bfloat16", "bf16", "torch.bfloat16", torch.bfloat16])
def test_named_dtype(name):
    assert choose_dtype(name, "cpu") == torch.bfloat16


def test_unknown_dtype():
    with pytest.raises(UsageError, match=r"(?s)no precision called 'bfloat61'.*did you mean 'bfloat16'"):
        choose_dtype("bfloat61")
