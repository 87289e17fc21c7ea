"""Exports of a quantised base: plain layers with the weights it stands for, and the gap to it."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from budwood import GiftConfig
from budwood.errors import VerificationError
from budwood.export import dequantised, merged_probe, verify
from budwood.export.checks import VerifyReport
from budwood.export.dequantised import GAP, LOGIT_GAP, OnQuantised, dense_twin, gap_checks
from budwood.models import load_base
from budwood.run import open_run
from budwood.storage import read_json, write_json
from tests.export.trained import trained
from tests.models import quantised_folders as folders

IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.fixture(params=folders.MAKERS)
def reference(request, tmp_path) -> str:
    return folders.made(request.param, tmp_path / "base")


def test_the_dense_twin_answers_as_the_quantised_base_and_is_an_ordinary_model(reference, tmp_path):
    wanted = logits(load_base(reference, device="cpu", dtype="float32").model.train())  # int8 rounds no inputs there
    twin = dense_twin(load_base(reference, device="cpu", dtype="float32"), torch.float32).model
    assert all(type(layer) is nn.Linear for layer in folders.linear_layers(twin).values())
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    assert (logits(twin) - wanted).abs().max() < 5e-2  # int8 multiplies in fp16
    twin.save_pretrained(tmp_path / "twin")
    assert "quantization_config" not in json.loads((tmp_path / "twin/config.json").read_text())
    assert {tensor.dtype for tensor in load_file(tmp_path / "twin/model.safetensors").values()} == {torch.float32}
    assert torch.equal(
        logits(load_base(str(folders_with_tokenizer(tmp_path / "twin")), dtype="float32").model), logits(twin)
    )


def folders_with_tokenizer(folder):
    from tests import tiny

    tiny.tokenizer().save_pretrained(folder)
    return folder


def test_the_gap_by_hand():
    torch.manual_seed(0)
    base, adapted = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    near, far = adapted + 1e-3, adapted + 0.5 * torch.randn(2, 3, 5)
    trained_on = OnQuantised(adapted, base)
    difference, kl = gap_checks(near, trained_on, accept=False)
    assert (difference.name, kl.name) == (LOGIT_GAP, GAP)
    assert difference.value == pytest.approx(1e-3, rel=1e-3) and kl.ok
    p, q = adapted.double().softmax(-1), base.double().softmax(-1)
    assert kl.limit == pytest.approx(0.05 * (p * (p / q).log()).sum(-1).mean().item())
    refused, taken = (gap_checks(far, trained_on, accept=accept)[1] for accept in (False, True))
    assert not refused.ok and "--force" in refused.note
    assert taken.ok and taken.value > taken.limit and "taken all the same" in taken.note


@pytest.fixture
def in_process(monkeypatch):
    """Answer requests without a second process; `budwood` is imported in this one."""

    def run(command, timeout_s):
        merged_probe.main(command[-1])
        result = read_json(command[-1])["result"]
        write_json(result, read_json(result) | {"imported": []})
        return ""

    monkeypatch.setattr(verify, "_run", run)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gap_above_the_limit_needs_force_and_is_on_the_card(dtype, tmp_path, monkeypatch, in_process):
    reference = folders.made("+int8", tmp_path / "base")
    base = load_base(reference, device="cpu", dtype="float32").model
    config = GiftConfig(r=4, target_modules=["q_proj", "down_proj"], init_weights=False)
    trained(config, base).save_pretrained(tmp_path / "adapter")
    run = open_run(tmp_path / "adapter", base=reference)
    monkeypatch.setattr(dequantised, "SHARE", 1e-5)
    with pytest.raises(VerificationError, match=rf"(?s){GAP}.*--force"):
        run.export("merged", tmp_path / "out", dtype=dtype)
    assert not (tmp_path / "out").exists()
    result = run.export("merged", tmp_path / "out", dtype=dtype, force=True)
    card = (tmp_path / "out/README.md").read_text().replace("\\", "")
    gap = next(check for check in result.checks if check.name == GAP)
    assert gap.value > gap.limit and f"{gap.value:.3g}" in card and "taken all the same" in card
    assert "trained on a quantised base (+int8)" in card and "round the update away" in card
    assert VerifyReport(result.checks).ok
    stored = load_file(tmp_path / "out/model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {getattr(torch, dtype)}


def test_a_merged_quantised_base_holds_the_dequantised_weights_and_the_update(tmp_path, monkeypatch, in_process):
    reference = folders.made("+nf4", tmp_path / "base")
    model = trained(
        GiftConfig(r=4, target_modules=["q_proj"]), load_base(reference, device="cpu", dtype="bfloat16").model
    )
    model.save_pretrained(tmp_path / "adapter")
    monkeypatch.setattr("budwood.models.load.choose_dtype", lambda *_: torch.bfloat16)  # of the training
    result = open_run(tmp_path / "adapter", base=reference).export("merged", tmp_path / "out", dtype="float32")
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    weight = folders.twin(reference, "bfloat16").float().state_dict()
    stored = load_file(result.folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert layer.get_delta_weight("default").abs().max() > 1e-2
    torch.testing.assert_close(stored[name] - weight[name], layer.get_delta_weight("default"), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(stored[name.replace("q_proj", "o_proj")], weight[name.replace("q_proj", "o_proj")])
