"""The story: a folder in, a compressed folder out that is a model like any other, and no trace of what failed."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from budwood import _compress
from budwood.compression.settings import Compression, Pattern
from budwood.errors import BudwoodError, ModelError, NotSupportedError, UsageError
from budwood.models import load_base, locate
from tests import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save(tiny.llama(), tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(f"The word number {i} is here." for i in range(80)), encoding="utf-8")
    return path


FILES = {
    "README.md",
    "chat_template.jinja",
    "compression.json",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
SMALL = {"length": 32, "samples": 8}


@pytest.mark.parametrize(
    "settings",
    [
        Compression(bits=4, group=16, **SMALL),
        Compression(bits=3, group=16, act_order=False, **SMALL),
        Compression("wanda", sparsity=0.5, **SMALL),
        Compression(pattern=Pattern(2, 4), dtype="bfloat16", **SMALL),
    ],
    ids=["gptq", "no-act-order", "wanda", "sparsegpt-2:4-bf16"],
)
def test_the_folder_is_a_model_and_says_what_it_is(folder, text, tmp_path, settings):
    out = tmp_path / "small"
    found = _compress.compress(str(folder), settings, [text], out=out, progress=False)
    assert {path.name for path in out.iterdir()} == FILES
    said = json.loads((out / "compression.json").read_text())
    assert said | {"folder": str(out), "bytes": (out / "model.safetensors").stat().st_size} == found
    assert said["fingerprint"] == locate(str(out)).fingerprint != said["source"]["fingerprint"]
    assert said["source"]["fingerprint"] == locate(str(folder)).fingerprint
    assert said["method"] and len(said["layers"]) == 14 and said["calibration"]["windows"] == 8
    assert 0 < said["layer_error"]["mean"] <= said["layer_error"]["largest"] < 1
    assert said["nll"]["before"] > 0 and said["nll"]["after"] > 0
    weights = load_file(out / "model.safetensors")
    weight = weights["model.layers.1.mlp.up_proj.weight"]
    assert weight.dtype == getattr(torch, settings.dtype)
    if settings.bits:
        assert all(len(group.unique()) <= 2**settings.bits for row in weight for group in row.split(16))
    else:
        assert (weight == 0).float().mean() == 0.5
    again = load_base(str(out), dtype="float32").model
    with torch.no_grad():
        assert torch.isfinite(again(torch.arange(8)[None]).logits).all()


def test_the_card_states_what_was_measured(folder, text, tmp_path):
    found = _compress.compress(
        str(folder), Compression("rtn", bits=4, group=16, **SMALL), [text], out=tmp_path / "x", progress=False
    )
    card = (tmp_path / "x" / "README.md").read_text()
    assert "compressed with rtn" in card and "no smaller" in card
    assert f"{found['nll']['after']:.6g}" in card and found["source"]["fingerprint"] in card


def test_without_text_there_is_no_nll(folder, tmp_path):
    found = _compress.compress(str(folder), Compression(bits=8, group=16), out=tmp_path / "x", progress=False)
    assert found["method"] == "rtn" and found["nll"] is None and found["calibration"] is None
    assert found["layer_error"]["mean"] < 0.01


def test_a_compressed_model_can_be_compressed_again_and_keeps_its_zeros(folder, tmp_path):
    _compress.compress(str(folder), Compression(sparsity=0.5), out=tmp_path / "a", progress=False)
    found = _compress.compress(str(tmp_path / "a"), Compression(bits=4, group=16), out=tmp_path / "b", progress=False)
    assert found["layer_error"]["zeros"] >= 0.5


def test_size_in_theory(folder, tmp_path):
    found = _compress.forecast(str(folder), Compression(bits=4, group=16), out=tmp_path / "x")
    size, layers = found["size"], 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    assert size["compressed_weights"] == layers and size["weights"] == tiny.llama().num_parameters()
    assert size["mib_in_theory"] == (layers * (4 + 20 / 16) + (size["weights"] - layers) * 16) / 8 / 2**20
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("call", [_compress.compress, _compress.forecast])
@pytest.mark.parametrize(
    ("settings", "options", "error", "told"),
    [
        (Compression(bits=4), {}, UsageError, "--group 64 does not divide"),
        (Compression(), {}, UsageError, "neither --bits nor --sparsity"),
        (Compression(bits=4, group=16, dtype="float31"), {}, UsageError, "float31"),
        (Compression(bits=4, group=16), {"engine": "lm-compressor"}, UsageError, "did you mean 'llm-compressor'"),
        (Compression(bits=4, group=16), {"engine": "llm-compressor"}, NotSupportedError, "leave --engine out"),
        (Compression("gptq", bits=4), {}, UsageError, "--calibration FILE"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_left(folder, tmp_path, call, settings, options, error, told):
    with pytest.raises(error) as raised:
        call(str(folder), settings, out=tmp_path / "x", **options)
    assert told in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_only_an_earlier_compressed_model_is_replaced(folder, tmp_path):
    settings, out = Compression(bits=4, group=16), tmp_path / "x"
    _compress.compress(str(folder), settings, out=out, progress=False)
    with pytest.raises(UsageError, match="--force"):
        _compress.compress(str(folder), settings, out=out, progress=False)
    _compress.compress(str(folder), Compression(bits=3, group=16), out=out, force=True, progress=False)
    assert json.loads((out / "compression.json").read_text())["bits"] == 3
    with pytest.raises(UsageError, match="is the model that is to be compressed"):
        _compress.compress(str(out), settings, out=out, force=True, progress=False)
    with pytest.raises(UsageError, match="holds no compressed model"):
        _compress.compress(str(out), settings, out=folder, force=True, progress=False)


def test_models_that_do_not_fit(folder, text, tmp_path):
    with pytest.raises(ModelError):
        _compress.compress(str(tmp_path / "none"), Compression(bits=4), out=tmp_path / "x")
    quantised = tiny.save(tiny.llama(), tmp_path / "quantised")
    config = json.loads((quantised / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(NotSupportedError, match="quantised already"):
        _compress.compress(str(quantised), Compression(bits=4, group=16), out=tmp_path / "x")


def test_a_failure_midway_leaves_nothing(folder, text, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise NotSupportedError("midway")

    monkeypatch.setattr("budwood.compression.sequential.compress_layer", fail)
    with pytest.raises(BudwoodError, match="midway"):
        _compress.compress(
            str(folder), Compression(bits=4, group=16, **SMALL), [text], out=tmp_path / "x", progress=False
        )
    assert not list(tmp_path.iterdir())


def test_a_place_beside_the_working_directory(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = _compress.compress(str(folder), Compression(bits=4, group=16), out="x", progress=False)
    assert found["folder"] == "x" and locate("x").fingerprint == found["fingerprint"]


def test_a_model_that_answers_nan_is_not_published(folder, text, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "budwood.evals.likelihood.likelihoods", lambda *_, **__: [SimpleNamespace(nll=float("nan"), tokens=1)]
    )
    with pytest.raises(ModelError, match="is nan"):
        _compress.compress(
            str(folder), Compression(bits=4, group=16, **SMALL), [text], out=tmp_path / "x", progress=False
        )
    assert not list(tmp_path.iterdir())
