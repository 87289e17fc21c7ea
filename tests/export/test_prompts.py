"""Soft prompts on their own: as PEFT folders, and as vectors that a server puts before a text's embeddings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from budwood.errors import StorageError, VerificationError
from budwood.export import prompts as exporter
from budwood.export.card import CardFacts
from budwood.export.prompts import VECTORS, export_prompts, prompt_embeddings
from tests import tiny
from tests.methods.idp.banks import save_prompts

IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])


def export(folder: Path, **changes):
    base = changes.pop("base", tiny.llama())
    places = {place.name: place for place in save_prompts(folder / "made", (3, 5))}
    options = dict(base_id="org/base", revision="abc", card=CardFacts("idp", "org/base"), dtype=base.dtype, inputs=IDS)
    return export_prompts(places, base, folder / "out", **(options | changes))


def test_each_prompt_is_a_peft_folder_and_a_tensor(tmp_path):
    result = export(tmp_path)
    stored = load_file(tmp_path / "out" / VECTORS)
    assert {name: tuple(one.shape) for name, one in stored.items()} == {"p0": (3, 32), "p1": (5, 32)}
    assert result.bytes == (tmp_path / "out" / VECTORS).stat().st_size and all(one.ok for one in result.checks)
    for name, vectors in stored.items():
        base = tiny.llama()
        loaded = PeftModel.from_pretrained(base, str(tmp_path / "out" / name)).eval()
        with torch.no_grad():
            wanted = loaded(input_ids=IDS[:1]).logits
            found = base(inputs_embeds=prompt_embeddings(vectors, base, IDS[0])[None]).logits
        assert torch.allclose(found, wanted[:, -found.shape[1] :], atol=1e-5)


def test_what_the_user_is_told_names_base_revision_and_every_prompt(tmp_path):
    result = export(tmp_path)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for text in ("'org/base'", "revision='abc'", "enable_prompt_embeds=True", "'p0'"):
        assert text in result.serve_lines["vLLM"] and text in card
    assert "p1" in result.serve_lines["vLLM"] and "prompt-tuning" in card and "cannot become a LoRA" in card
    compile(result.serve_lines["vLLM"], "lines", "exec")
    compile(result.serve_lines["PEFT"], "lines", "exec")


def test_vectors_that_differ_are_found_and_nothing_is_left(tmp_path, monkeypatch):
    real = exporter.save_file

    def damaged(tensors, path, **options):
        real({name: one + 0.1 for name, one in tensors.items()}, path, **options)

    monkeypatch.setattr(exporter, "save_file", damaged)
    with pytest.raises(VerificationError, match="embeddings give what PEFT gives"):
        export(tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_16_bit_base_gets_16_bit_vectors(tmp_path):
    export(tmp_path, base=tiny.llama().to(torch.bfloat16))
    assert load_file(tmp_path / "out" / VECTORS)["p0"].dtype == torch.bfloat16


def test_an_export_is_replaced_only_where_asked(tmp_path):
    export(tmp_path)
    with pytest.raises(StorageError, match="exists already"):
        export(tmp_path)
    export(tmp_path, replace=True)
