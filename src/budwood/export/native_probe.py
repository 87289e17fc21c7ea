"""Run as `python -m budwood.export.native_probe REQUEST.json`: load a base and a native adapter, write the answers.

The request holds `register` (`module:function`, which makes our tuners known to PEFT: that module lies above this
room), `reference` (the base) with `dtype`, `device`, `attention` and `trust_remote_code`, `adapter` (a folder) with
`autocast` (whether PEFT makes its parameters fp32), `threads`, `inputs` and `outputs` (safetensors files) and `result`
(a JSON file).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def main(path: str) -> None:
    """Answer the request in `path`."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: the base was loaded by the parent already
    import torch

    request = json.loads(Path(path).read_text(encoding="utf-8"))
    torch.set_num_threads(request["threads"])
    if request["register"]:
        module, _, function = request["register"].partition(":")
        getattr(importlib.import_module(module), function)()
    Path(request["result"]).write_text(json.dumps(_probe(request)), encoding="utf-8")


def _probe(request: dict[str, Any]) -> dict[str, list[str]]:
    """Load, run and save; return the keys of the adapter's parameters and of its file."""
    import torch
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors.torch import load_file, save_file

    from budwood.export.foreign import inspect_adapter
    from budwood.export.logits import adapted_logits, base_logits
    from budwood.models import load_base

    settings = {name: request[name] for name in ("dtype", "device", "attention", "trust_remote_code")}
    base = load_base(request["reference"], **settings)
    model = PeftModel.from_pretrained(base.model, request["adapter"], autocast_adapter_dtype=request["autocast"])
    ids = load_file(request["inputs"])["input_ids"].to(torch.device(request["device"]))
    save_file({"adapted": adapted_logits(model, ids), "base": base_logits(model, ids)}, request["outputs"])
    return {
        "parameters": sorted(get_peft_model_state_dict(model)),
        "file": sorted(inspect_adapter(request["adapter"]).keys),
    }


if __name__ == "__main__":
    main(sys.argv[1])
