"""How much faster a training step is when the frozen layers below the adapter are computed once for each row.

    python benchmarks/prefix_cache.py [--repeats 6] [--seeds 0] [--threads N] [--device auto] [--dtype bfloat16]
                                      [--model smollm2] [--top 6] [-o benchmarks/results/prefix_cache.json]

The packaged SmolLM2-135M with LoRA of rank 16 in its top 6 of 30 layers, on queries and values or on all seven
projections; steps of 8 x 64 tokens: forward, backward and AdamW. Two loads, each with and without the cache in turn in
one process (A B A B, …), so that a busy machine slows both alike:

    uniform   every position has a weight, so the head computes them all
    sparse    one position in five has one

Printed for each seed and adapter: medians of tokens a second, the ratio cached / uncached in each round and its
median, the limit that the counts of multiplications set, the seconds and bytes of the cache, and the largest
difference of logits it makes, relative to the largest logit. The limit counts the weights that a token passes, forward
and backward: with L layers of which the top K are adapted, and a head that computes one part of the positions,

    ((L + K) layer + 2 part head) / (2 K layer + 2 part head),

layer and head standing for their numbers of weights; attention over positions, the adapter's own weights, norms and
the optimiser are left out. Time is processor time on a CPU, which another process's work does not add to, and
wall-clock time in CUDA.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor

from budwood.data.collate import Collator
from budwood.data.problems import Origin
from budwood.data.render import Encoded
from budwood.models import find_sites, load_base
from budwood.training.loss import weighted_nll
from budwood.training.prefix_cache import PrefixCache
from budwood.tuning.attach import quiet_peft

ADAPTED = {
    "qv": ["q_proj", "v_proj"],
    "all": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
BATCH, LENGTH = 8, 64
SHARES = {"uniform": 1.0, "sparse": 0.2}  # the part of the positions that has a weight


def rows(share: float, count: int, vocabulary: int, seed: int) -> list[Encoded]:
    """Return rows of random tokens; the same tokens for each share."""
    draw, made = random.Random(seed), []
    for i in range(count):
        ids = [draw.randrange(vocabulary) for _ in range(LENGTH)]
        chosen = set(random.Random(i).sample(range(1, LENGTH), round(share * (LENGTH - 1))))
        weights = [float(t in chosen) for t in range(LENGTH)]
        made.append(Encoded(ids, ids, weights, Origin("random", i), i))
    return made


def adapted(targets: list[str], arguments: argparse.Namespace, seed: int) -> PeftModel:
    """Return the model with LoRA in its top layers."""
    base = load_base(arguments.model, dtype=arguments.dtype, device=arguments.device).model
    depth = base.config.num_hidden_layers
    torch.manual_seed(seed)
    layers = list(range(depth - arguments.top, depth))
    with quiet_peft():
        config = LoraConfig(r=16, target_modules=targets, layers_to_transform=layers, task_type="CAUSAL_LM")
        return get_peft_model(base, config).train()


def step(model: PeftModel, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> None:
    """One step of training."""
    total, weight = weighted_nll(model, batch)
    (total / weight).backward()
    optimizer.step()
    optimizer.zero_grad()


def clock(device: torch.device) -> float:
    """Return seconds: of the processor, or of the wall clock once the GPU is done."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def limit(model: PeftModel, top: int, share: float) -> float:
    """Return the quotient of multiplications without and with the cache."""
    core = model.get_base_model()
    depth, head = core.config.num_hidden_layers, core.get_output_embeddings().weight.numel()
    block = sum(site.in_features * site.out_features for site in find_sites(core) if site.layer == 0)
    above = 2 * top * block + 2 * share * head
    return (depth * block + top * block + 2 * share * head) / above


def measure(seed: int, targets: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one seed and adapter."""
    model = adapted(ADAPTED[targets], arguments, seed)
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    collate = Collator(pad_token_id=0)
    found: dict[str, Any] = {"seed": seed, "targets": targets}
    vocabulary = model.config.vocab_size
    with tempfile.TemporaryDirectory() as folder:
        begin = clock(device)
        stored = rows(1.0, 4 * BATCH, vocabulary, seed)
        cache = PrefixCache.build(model, stored, collate, Path(folder), batch_size=BATCH)
        found["build_s"] = round(clock(device) - begin, 2)
        found["cache_bytes"] = sum(file.stat().st_size for file in cache.path.iterdir())
        for load, share in SHARES.items():
            data = rows(share, 4 * BATCH, vocabulary, seed)
            batches = [
                {name: value.to(device) for name, value in collate(data[i : i + BATCH]).items()}
                for i in range(0, len(data), BATCH)
            ]
            found[load] = {
                "deviation": cache.deviation(model, batches[0]),
                **compare(model, optimizer, batches, cache, arguments.repeats, device),
                "limit": round(limit(model, arguments.top, share), 2),
            }
    return found


def compare(
    model: PeftModel,
    optimizer: torch.optim.Optimizer,
    batches: list[dict[str, Tensor]],
    cache: PrefixCache,
    repeats: int,
    device: torch.device,
) -> dict[str, Any]:
    """Return tokens a second without and with the cache, and the median of their ratio."""
    seconds: dict[str, list[float]] = {"uncached": [], "cached": []}
    for repeat in range(repeats + 1):
        for name, taken in seconds.items():
            with cache.attached(model) if name == "cached" else nullcontext():
                begin = clock(device)
                step(model, optimizer, batches[repeat % len(batches)])
                if repeat:  # the first round warms up
                    taken.append(clock(device) - begin)
    ratios = [slow / fast for slow, fast in zip(seconds["uncached"], seconds["cached"])]
    speeds = {name: round(BATCH * LENGTH / statistics.median(taken), 1) for name, taken in seconds.items()}
    return {
        "tokens_per_s": speeds,
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(r, 2) for r in ratios],
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
        **{name: getattr(arguments, name) for name in ("model", "dtype", "top", "repeats")},
        "batch": [BATCH, LENGTH],
    }


def main() -> None:
    """Measure, print, and write to a file where one is named."""
    parser = argparse.ArgumentParser(description="time of a training step with and without the frozen-prefix cache")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--top", type=int, default=6, help="adapted layers")
    parser.add_argument("-o", "--out", type=Path)
    arguments = parser.parse_args()
    if arguments.device == "auto":
        arguments.device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(arguments.threads)
    runs = [measure(seed, targets, arguments) for seed in arguments.seeds for targets in ADAPTED]
    result = {"benchmark": "prefix_cache", **where(arguments), "runs": runs}
    print(json.dumps(result, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
