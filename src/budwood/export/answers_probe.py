"""Run as `python -m budwood.export.answers_probe REQUEST.json`: load a base and a result, write its answers.

The request holds `method` (its name), `reference` (the base) with `dtype`, `device`, `attention` and
`trust_remote_code`, `adapter` (a folder), `threads`, `inputs` and `outputs` (safetensors files) and `result`.
"""

from __future__ import annotations

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
    _probe(request)
    Path(request["result"]).write_text("{}", encoding="utf-8")


def _probe(request: dict[str, Any]) -> None:
    """Load, run and save."""
    import torch
    from safetensors.torch import load_file, save_file

    from budwood.models import load_base
    from budwood.tuning.registry import find_method

    settings = {name: request[name] for name in ("dtype", "device", "attention", "trust_remote_code")}
    made = find_method(request["method"]).load_format
    assert made is not None, f"{request['method']} publishes PEFT adapters"
    form, folder = made(), Path(request["adapter"])
    # The parent has held the base against the fingerprint already, or was told not to.
    model = form.load(load_base(request["reference"], **settings), folder, force=True)
    ids = load_file(request["inputs"])["input_ids"].to(torch.device(request["device"]))
    save_file(form.answers(model, ids, folder), request["outputs"])


if __name__ == "__main__":
    main(sys.argv[1])
