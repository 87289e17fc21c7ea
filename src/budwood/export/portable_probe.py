"""Run as a script: load a base and an adapter as a stranger would, and write what the model answers.

This file imports torch, transformers, peft and safetensors and nothing of the package that ships it: it stands for
every user who has not installed it. Usage: `python -P portable_probe.py REQUEST.json`, where the request holds
`base`, `adapter`, `dtype`, `threads`, `inputs` and `outputs` (safetensors files) and `result` (a JSON file).
"""

import json
import os
import sys


def main(path: str) -> None:
    """Answer the request in `path`."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: a verification reaches no network
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    with open(path, encoding="utf-8") as file:
        request = json.load(file)
    torch.set_num_threads(request["threads"])
    encoder_decoder = AutoConfig.from_pretrained(request["base"]).is_encoder_decoder
    auto = AutoModelForSeq2SeqLM if encoder_decoder else AutoModelForCausalLM
    base = auto.from_pretrained(request["base"], dtype=getattr(torch, request["dtype"]))
    model = PeftModel.from_pretrained(base, request["adapter"])
    loaded = model.load_adapter(request["adapter"], "default")

    ids = load_file(request["inputs"])["input_ids"]
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if encoder_decoder else {})
    with torch.inference_mode():
        adapted = model(**inputs).logits
        with model.disable_adapter():
            plain = model(**inputs).logits
        answers = {"adapted": adapted, "base": plain}
        if base.dtype != torch.float32:  # what rounding does: the same weights once more, computed in fp32
            answers["exact"] = model.to(torch.float32)(**inputs).logits
    save_file({name: logits.contiguous() for name, logits in answers.items()}, request["outputs"])
    result = {
        "missing": list(loaded.missing_keys),
        "unexpected": list(loaded.unexpected_keys),
        "imported": sorted({name.partition(".")[0] for name in sys.modules}),
    }
    with open(request["result"], "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1])
