"""The command: says what is going to be computed, computes the cells that are missing, prints the table."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from budwood.data.offsets import OffsetTokens
from budwood.data.render import Encoded
from budwood.errors import BudwoodError, InterruptedRunError, UsageError
from budwood.evals.recall import score_probes
from budwood.models import choose_device, load_base
from budwood.training.environment import describe_environment

from ..instructions.results import append, read
from .arms import Arm, choose_arms
from .facts import Facts, digest
from .learning import Look, Schedule, adapted, learn
from .report import report
from .weighting import Workshop, make_weights

RESULTS = Path(__file__).parents[1] / "results" / "lama_ckl.jsonl"
VERSION = 1  # raise it when a change here makes old cells no longer comparable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = _parser().parse_args(arguments)
    try:
        if not args.report:
            _run(args)
        print(report(read(args.results).values()))
    except BudwoodError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted; finished cells and measured importances are kept")
        return InterruptedRunError.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/lama_ckl.py", description="token weights on facts to learn")
    parser.add_argument("--data", type=Path, help="folder of the resampled LAMA-ckl: its splits/*.jsonl")
    parser.add_argument("--base", default="smollm2", help="the base model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the base; auto: bf16 where the device multiplies in it")
    parser.add_argument("--arms", nargs="+", default=["headline"], help="names, 'rules', 'scorers' or 'headline'")
    parser.add_argument("--to-learn", default="to_learn_dev_cpu", help="the split that is learned")
    parser.add_argument("--to-keep", default="not_to_forget_dev", help="the split of facts that should stay known")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=Schedule.epochs)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after so many minutes")
    parser.add_argument("--threads", type=int, help="threads of torch")
    parser.add_argument("--work", type=Path, default=Path("runs/lama_ckl"), help="folder of what is kept between runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only print the table of the results")
    return parser


def _run(args: argparse.Namespace) -> None:
    if args.data is None:
        raise UsageError("no data were given", action="give the folder: --data DIR")
    if args.threads:
        torch.set_num_threads(args.threads)
    arms, began = choose_arms(args.arms), time.monotonic()
    # Eager attention: forward-mode derivatives go through it, and so J_t can be measured in bf16.
    base = load_base(args.base, dtype=args.dtype, device=str(choose_device(args.device)), attention="eager")
    splits = args.data / "splits" if (args.data / "splits").is_dir() else args.data
    shop = Workshop(base, OffsetTokens(base.tokenizer), splits, args.work, Schedule(epochs=args.epochs))
    facts, keep = shop.facts(args.to_learn), _known(shop, shop.facts(args.to_keep))
    table = _table(shop, args)
    _say(f"{len(facts)} facts to learn, {len(keep)} to keep; {len(arms)} arms, {args.seeds} seeds")
    for seed in range(args.seeds):
        for arm in arms:
            key = _digest([table, arm.name, repr(arm), seed])[:16]
            if key in read(args.results):  # another process may have computed it meanwhile
                continue
            if time.monotonic() - began > 60 * args.minutes:
                _say("stopped here; the same command goes on with the next cell")
                return
            line = _compute(shop, arm, facts, keep, seed)
            append(args.results, {"key": key, "arm": arm.name, "seed": seed} | line | {"common": table})
            _say(_summary(arm, seed, line))


def _known(shop: Workshop, facts: Facts) -> list[Encoded]:
    """Return the probes of facts that this base knows in this precision; what it does not know it cannot forget."""
    scores = score_probes(shop.base.model, facts.descriptive, batch_size=16).scores
    return [probe for probe, score in zip(facts.descriptive, scores) if score.exact]


def _compute(shop: Workshop, arm: Arm, facts: Facts, keep: Sequence[Encoded], seed: int) -> dict[str, Any]:
    began, cpu_began = time.perf_counter(), time.process_time()
    weights, made = make_weights(shop, arm, facts)
    prepared = time.process_time()
    texts = [passage.encoded for passage in facts.passages]
    rows = [*texts, *facts.descriptive, *keep]
    with adapted(shop.base, rows, shop.work / "prefix", rank=shop.schedule.rank, seed=100 + seed) as model:
        looks = list(learn(model, texts, weights, facts.descriptive, keep, shop.schedule, seed=seed))
    return {
        "weights": made,
        "looks": [_packed(look) for look in looks],
        "objects": _classes(facts.objects),
        "preparing_cpu_s": round(prepared - cpu_began, 2),
        "training_cpu_s": round(time.process_time() - prepared, 2),
        "minutes": round((time.perf_counter() - began) / 60, 3),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
    }


def _packed(look: Look) -> dict[str, Any]:
    parts = {name: [round(value, 4) for value in getattr(look, name)] for name in ("learn", "nll", "keep")}
    return {"epoch": look.epoch, **parts}


def _classes(objects: Sequence[str]) -> list[int]:
    """Return a number for each fact, the same for equal objects: the results hold no text of the data."""
    known: dict[str, int] = {}
    return [known.setdefault(one.casefold(), len(known)) for one in objects]


def _table(shop: Workshop, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "version": VERSION,
        "data": digest(shop.data),
        "to_learn": args.to_learn,
        "to_keep": args.to_keep,
        "base": str(shop.base.source.reference),
        "fingerprint": shop.base.source.fingerprint,
        "dtype": str(shop.base.model.dtype).removeprefix("torch."),
        "device": shop.base.model.device.type,
        "schedule": vars(shop.schedule),
    }


def _summary(arm: Arm, seed: int, line: Mapping[str, Any]) -> str:
    last = line["looks"][-1]
    means = {name: sum(last[name]) / len(last[name]) for name in ("learn", "nll", "keep")}
    figures = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
    return f"{arm.name}, seed {seed}: {figures} at the end; {line['minutes']:.1f} minutes; {line['weights']}"


def _machine() -> dict[str, Any]:
    facts = describe_environment()
    return {name: facts[name] for name in ("python", "cpu", "torch_threads", "devices", "git")}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
