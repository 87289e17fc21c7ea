"""A program for the side environment: runs llm-compressor on one request. It never imports budwood.

Takes a folder with `request.json` and `windows.safetensors`; `side.run` writes them and names the fields.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(place: Path) -> None:
    """Compress the model of the request and write it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all it needs lies on this disk
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    request = json.loads((place / "request.json").read_text(encoding="utf-8"))
    ids = load_file(place / "windows.safetensors")["input_ids"]
    rows = {"input_ids": ids.tolist(), "attention_mask": torch.ones_like(ids).tolist()}
    model = AutoModelForCausalLM.from_pretrained(request["source"], dtype=getattr(torch, request["dtype"]))
    tokenizer = AutoTokenizer.from_pretrained(request["source"])
    oneshot(
        model=model,
        tokenizer=tokenizer,
        dataset=Dataset.from_dict(rows),
        recipe=modifier(request),
        num_calibration_samples=len(ids),
        max_seq_length=ids.shape[1],
        shuffle_calibration_samples=False,
    )
    model.save_pretrained(request["out"], save_compressed=True)
    tokenizer.save_pretrained(request["out"])


def modifier(request: dict[str, Any]) -> Any:
    """Return the step of llm-compressor that the request asks for."""
    if request["method"] == "gptq":
        from llmcompressor.modifiers.gptq import GPTQModifier

        weights = {"num_bits": request["bits"], "type": "int", "symmetric": request["symmetric"]}
        grid = weights | {"strategy": "group", "group_size": request["group"]}
        return GPTQModifier(
            config_groups={"group_0": {"targets": ["Linear"], "weights": grid}},
            ignore=request["ignore"],
            dampening_frac=request["damping"],
            actorder="static" if request["act_order"] else None,
        )
    settings = {"sparsity": request["sparsity"], "targets": ["Linear"], "ignore": request["ignore"]}
    if request["dropped_of"]:  # it counts the dropped ones of each set, budwood the kept ones
        settings["mask_structure"] = request["dropped_of"]
    if request["method"] == "wanda":
        from llmcompressor.modifiers.pruning import WandaPruningModifier

        return WandaPruningModifier(**settings)
    from llmcompressor.modifiers.pruning import SparseGPTModifier

    return SparseGPTModifier(**settings, dampening_frac=request["damping"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
