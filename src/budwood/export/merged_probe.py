"""Run as a script: load a model folder with plain transformers and write what it answers.

Like `portable_probe.py` it imports nothing of the package that ships it. Usage: `python -P merged_probe.py
REQUEST.json`, where the request holds `model` (a folder), `threads`, `inputs` and `outputs` (safetensors files) and
`result` (a JSON file).
"""

import json
import os
import sys


def main(path: str) -> None:
    """Answer the request in `path`."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: a verification reaches no network
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    with open(path, encoding="utf-8") as file:
        request = json.load(file)
    torch.set_num_threads(request["threads"])
    config = transformers.AutoConfig.from_pretrained(request["model"])
    kind = getattr(transformers, config.architectures[0])
    # The weights as stored, but computed with in fp32.
    model, report = kind.from_pretrained(request["model"], dtype=torch.float32, output_loading_info=True)
    ids = load_file(request["inputs"])["input_ids"]
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if config.is_encoder_decoder else {})
    with torch.inference_mode():
        logits = model(**inputs).logits.contiguous()
    save_file({"adapted": logits, "base": logits.clone()}, request["outputs"])
    result = {
        "dtype": str(config.dtype).removeprefix("torch."),
        "missing": sorted(report["missing_keys"]),
        "unexpected": sorted(report["unexpected_keys"]),
        "imported": sorted({name.partition(".")[0] for name in sys.modules}),
    }
    with open(request["result"], "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1])
