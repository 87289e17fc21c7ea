"""Run as a script: load a GGUF base and a GGUF LoRA in llama.cpp and write all logits of all positions.

This is the one file that imports llama_cpp; like `portable_probe.py` it imports nothing of the package that ships it.
Usage: `python -P llamacpp_probe.py REQUEST.json`, where the request holds `base` and `adapter` (GGUF files),
`threads`, `inputs` and `outputs` (safetensors files) and `result` (a JSON file).
"""

import ctypes
import json
import sys
from typing import Any

import llama_cpp
import numpy as np
from safetensors.numpy import load_file, save_file

GGML_TYPE_F32 = 0


def main(path: str) -> None:
    """Answer the request in `path`."""
    with open(path, encoding="utf-8") as file:
        request = json.load(file)
    rows = load_file(request["inputs"])["input_ids"]
    llama_cpp.llama_backend_init()
    model = loaded(llama_cpp.llama_model_load_from_file(request["base"].encode(), model_settings()), "the base")
    settings = context_settings(rows.shape[1], request["threads"])
    context = loaded(llama_cpp.llama_init_from_model(model, settings), "a context")
    base = logits(model, context, rows)
    adapter = loaded(llama_cpp.llama_adapter_lora_init(model, request["adapter"].encode()), "the adapter")
    scales = (ctypes.c_float * 1)(1.0)
    if llama_cpp.llama_set_adapters_lora(context, (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter), 1, scales):
        raise SystemExit("llama.cpp does not take the adapter")
    save_file({"adapted": logits(model, context, rows), "base": base}, request["outputs"])
    with open(request["result"], "w", encoding="utf-8") as file:
        json.dump({"version": llama_cpp.__version__}, file)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)


def loaded(pointer: Any, what: str) -> Any:
    """Return the pointer; llama.cpp has said on standard error why there is none."""
    if not pointer:
        raise SystemExit(f"llama.cpp could not load {what}")
    return pointer


def model_settings() -> Any:
    """Return the settings of the model: on the CPU, with its weights as they lie in the file."""
    settings = llama_cpp.llama_model_default_params()
    settings.n_gpu_layers = 0
    # Else weights may be repacked for AMX, and some builds then die of an illegal instruction at the first evaluation.
    settings.use_extra_bufts = False
    return settings


def context_settings(tokens: int, threads: int) -> Any:
    """Return the settings of a context of `tokens` positions in which nothing is rounded to less than fp32."""
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = tokens
    settings.n_threads = settings.n_threads_batch = threads
    settings.type_k = settings.type_v = GGML_TYPE_F32
    settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return settings


def logits(model: Any, context: Any, rows: np.ndarray) -> np.ndarray:
    """Return the logits (b, t, v) of token ids (b, t)."""
    words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    answers = []
    for row in rows.tolist():
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        batch = llama_cpp.llama_batch_init(len(row), 0, 1)
        batch.n_tokens = len(row)
        for i, token in enumerate(row):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        if code := llama_cpp.llama_decode(context, batch):
            raise SystemExit(f"llama.cpp could not evaluate a text: {code}")
        values = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (len(row), words))
        answers.append(values.copy())
        llama_cpp.llama_batch_free(batch)
    return np.stack(answers)


if __name__ == "__main__":
    main(sys.argv[1])
