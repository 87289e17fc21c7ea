"""How long a training step takes with an adapter, against the frozen base alone: GIFT beside LoRA.

    python benchmarks/gift_speed.py [--quick] [--repeats 20] [--seeds 0 1 2] [--threads N] [--device auto]
                                    [--dtype bfloat16] [-o FILE.jsonl]

A Llama of SmolLM2-135M's shape with random weights; forward and backward of a batch of 8 x 64 tokens, no optimiser.
Arms, measured in turn in one process (A B C D, A B C D, …), so that a busy machine slows all of them alike:

    f       the frozen base; its embedded input requires a gradient, so that the backward pass runs through all layers
    lora    LoRA, rank 16, all seven projections, as PEFT computes it: in fp32
    amp     the same under autocast to bf16, where the base is bf16: how fast LoRA can be made
    type    GIFT, rank 32, one φψ per kind of layer, down on the output side
    block   GIFT, rank 16, groups q k v | o | gate up | down shared over depth, o and down on the output side

Printed for each seed: medians of the time of a step, of a decoded token (batch 1, KV cache) and peak memory (of one
step above the model itself; on a CPU the tensors that the profiler saw, in CUDA the allocator's peak), and from the
medians over rounds the ratios (GIFT − f) / (LoRA − f) and GIFT / LoRA. Time is processor time on a CPU, which another
process's work does not add to, and wall-clock time in CUDA. `--quick` builds 4 layers instead of 30 and a vocabulary
of 4,096, so that the head, the same in all arms, does not drown the rest.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from budwood import GiftConfig
from budwood.tuning.attach import quiet_peft

SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
INPUT = dict.fromkeys(SEVEN, "input")
CONFIGS: dict[str, Callable[[], Any]] = {
    "lora": lambda: LoraConfig(r=16, target_modules=SEVEN, task_type="CAUSAL_LM"),
    "type": lambda: GiftConfig(
        r=32, target_modules=SEVEN, side=INPUT | {"down_proj": "output"}, task_type="CAUSAL_LM"
    ),
    "block": lambda: GiftConfig(
        r=16,
        target_modules=SEVEN,
        side=INPUT | {"o_proj": "output", "down_proj": "output"},
        share=[["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]],
        task_type="CAUSAL_LM",
    ),
}
BATCH, LENGTH, TOKENS = 8, 64, 16


def vocabulary(arguments: argparse.Namespace) -> int:
    return 4096 if arguments.quick else 49152


def base(layers: int, arguments: argparse.Namespace) -> LlamaForCausalLM:
    """Return SmolLM2-135M's shape with random frozen weights."""
    config = LlamaConfig(
        vocab_size=vocabulary(arguments), hidden_size=576, intermediate_size=1536, num_hidden_layers=layers,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).requires_grad_(False).to(arguments.device, getattr(torch, arguments.dtype))


def arm(name: str, layers: int, seed: int, arguments: argparse.Namespace) -> nn.Module:
    """Return the model of one arm, its adapter moved off zero."""
    torch.manual_seed(seed)
    model: nn.Module = base(layers, arguments)
    if name == "f":
        model.enable_input_require_grads()
        return model
    with quiet_peft():
        adapted = get_peft_model(model, CONFIGS[name]())
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.02)
    return adapted


def step(name: str, model: nn.Module, ids: torch.Tensor) -> None:
    """One forward and one backward pass."""
    model.zero_grad()
    with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=name == "amp"):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()


def clock(ids: torch.Tensor) -> float:
    """Return seconds: of the processor, or of the wall clock once the GPU is done."""
    if not ids.is_cuda:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


@torch.no_grad()
def decode(model: nn.Module, ids: torch.Tensor) -> float:
    """Return the seconds of one token after the first, batch 1."""
    core = model.get_base_model() if isinstance(model, PeftModel) else model
    answer = core(input_ids=ids[:1], use_cache=True)
    cache, token = answer.past_key_values, ids[:1, -1:]
    start = clock(ids)
    for _ in range(TOKENS):
        token = core(input_ids=token, cache=cache, use_cache=True).logits[:, -1:].argmax(-1)
    return (clock(ids) - start) / TOKENS


def peak_mib(name: str, model: nn.Module, ids: torch.Tensor) -> float:
    """Return the peak of memory that a step adds, in MiB."""
    if ids.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(name, model, ids)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        step(name, model, ids)
    used = peak = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            used += event.nbytes()
            peak = max(peak, used)
    return peak / 2**20


def measure(seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one seed."""
    layers = 4 if arguments.quick else 30
    models = {name: arm(name, layers, seed, arguments) for name in ("f", *CONFIGS)}
    if arguments.dtype == "bfloat16":
        models["amp"] = models["lora"]
    ids = torch.randint(0, vocabulary(arguments), (BATCH, LENGTH), device=arguments.device)
    steps: dict[str, list[float]] = {name: [] for name in models}
    for repeat in range(arguments.repeats + 1):
        for name, model in models.items():
            model.train()
            start = clock(ids)
            step(name, model, ids)
            if repeat:  # the first round warms up
                steps[name].append(clock(ids) - start)
    gc.collect()
    peaks = {name: round(peak_mib(name, model.train(), ids), 1) for name, model in models.items()}
    tokens: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(max(3, arguments.repeats // 4)):
        for name, model in models.items():
            if name != "amp":  # it is the model of "lora", which decodes without autocast
                tokens[name].append(decode(model.eval(), ids))
    return {"seed": seed, **summary(steps, tokens), "peak_mib": peaks}


def summary(steps: dict[str, list[float]], tokens: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians in milliseconds, and ratios as medians over rounds."""
    rounds = [dict(zip(steps, row)) for row in zip(*steps.values())]
    above = {name: statistics.median(r[name] - r["f"] for r in rounds) for name in steps}
    extra = {name: above[name] / above["lora"] for name in steps if name not in ("f", "lora")}
    return {
        "step_ms": {name: round(1000 * statistics.median(values), 1) for name, values in steps.items()},
        "above_f_ms": {name: round(1000 * value, 1) for name, value in above.items()},
        "extra_over_lora_extra": {name: round(value, 3) for name, value in extra.items()},
        "step_over_lora_step": {
            name: round(statistics.median(r[name] / r["lora"] for r in rounds), 3) for name in extra
        },
        "token_ms": {name: round(1000 * statistics.median(values), 2) for name, values in tokens.items() if values},
    }


def where(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the figures depend on besides the code."""
    root = Path(__file__).parent
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
    changed = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip() + ("+changes" if changed.stdout.strip() else ""),
        "machine": torch.cuda.get_device_name() if arguments.device == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),
        "dtype": arguments.dtype,
        "layers": 4 if arguments.quick else 30,
        "repeats": arguments.repeats,
    }


def main() -> None:
    """Measure, print, and append to a file where one is named."""
    parser = argparse.ArgumentParser(description="time of a training step: GIFT beside LoRA")
    parser.add_argument("--quick", action="store_true", help="4 layers instead of 30")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("-o", "--out", type=Path)
    arguments = parser.parse_args()
    if arguments.device == "auto":
        arguments.device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(arguments.threads)
    for seed in arguments.seeds:
        result = {"benchmark": "gift_speed", **where(arguments), **measure(seed, arguments)}
        print(json.dumps(result, indent=2))
        if arguments.out:
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
