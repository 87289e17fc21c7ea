"""The command: one epoch of each period's text in turn, the adapter carried on, and the probes of the period after it.

The protocol is that of TAALM (arXiv 2407.16920) at the size of a CPU. The figure is nats a token of the object, which
the paper calls PPL. Changed and unchanged facts move together where the text repeats both, so read the two columns
beside those of uniform weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor

from budwood.data.offsets import OffsetTokens
from budwood.errors import BudwoodError, DataError, UsageError, nearest
from budwood.evals.recall import score_probes
from budwood.methods.taalm.learner_settings import DocumentSettings, WeightRule
from budwood.methods.taalm.weighting import find_prior, weigh
from budwood.models import Base, choose_device, load_base

from ..instructions.report import difference
from ..instructions.results import append, read
from ..lama_ckl.learning import Schedule, adapted, epochs
from .periods import KINDS, Period, digest, read_periods

RESULTS = Path(__file__).parents[1] / "results" / "temporalwiki.jsonl"
VERSION = 1  # raise it when a change here makes old cells no longer comparable
ARMS = ("base", *get_args(WeightRule))
SECONDS = 1.5e-3  # CPU seconds a token: SmolLM2-135M, bf16, one core, what the lower layers give is kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = _parser().parse_args(arguments)
    try:
        if not args.report:
            _run(args)
        print(report(list(read(args.results).values())))
    except BudwoodError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/temporalwiki.py", description="month after month of new text")
    parser.add_argument("--data", type=Path, help="folder of probes and texts, one pair of files a period")
    parser.add_argument("--base", default="smollm2", help="the base model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the base; auto: bf16 where the device multiplies in it")
    parser.add_argument("--arms", nargs="+", default=["base", "uniform", "taalm"], help=", ".join(ARMS))
    parser.add_argument("--probes", type=int, default=300, help="of a kind and period")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after so many minutes")
    parser.add_argument("--threads", type=int, help="threads of torch")
    parser.add_argument("--work", type=Path, default=Path("runs/temporalwiki"), help="folder of what is kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only print the table of the results")
    return parser


def _run(args: argparse.Namespace) -> None:
    if args.data is None:
        raise UsageError("no data were given", action="give the folder: --data DIR")
    for arm in args.arms:
        if arm not in ARMS:
            raise UsageError(f"there is no arm {arm!r}", action=nearest(arm, ARMS))
    if args.threads:
        torch.set_num_threads(args.threads)
    base = load_base(args.base, dtype=args.dtype, device=str(choose_device(args.device)))
    periods = read_periods(args.data, OffsetTokens(base.tokenizer), most=args.probes)
    if args.arms != ["base"] and not all(period.passages for period in periods):
        raise DataError(
            "a period has no text to learn from",
            wanted="PERIOD/ or PERIOD.jsonl",
            action="--arms base measures the base",
        )
    schedule, began = Schedule(epochs=1, learning_rate=args.learning_rate), time.monotonic()
    common = _common(base, args, schedule)
    cells = [(arm, seed) for seed in range(args.seeds) for arm in args.arms if arm != "base" or not seed]
    missing = [cell for cell in cells if _key(common, *cell) not in read(args.results)]
    _announce(missing, periods)
    for arm, seed in missing:
        if time.monotonic() - began > 60 * args.minutes:
            _say("stopped here; the same command goes on with the next cell")
            return
        line = _compute(base, periods, arm, schedule, args.work, seed)
        append(args.results, {"key": _key(common, arm, seed), "arm": arm, "seed": seed} | line | {"common": common})


def _common(base: Base, args: argparse.Namespace, schedule: Schedule) -> dict[str, Any]:
    return {
        "version": VERSION,
        "data": digest(args.data),
        "probes": args.probes,
        "base": str(base.source.reference),
        "fingerprint": base.source.fingerprint,
        "dtype": str(base.model.dtype).removeprefix("torch."),
        "device": base.model.device.type,
        "schedule": vars(schedule),
    }


def _key(common: Mapping[str, Any], arm: str, seed: int) -> str:
    return hashlib.sha256(json.dumps([common, arm, seed], sort_keys=True).encode()).hexdigest()[:16]


def _announce(missing: Sequence[tuple[str, int]], periods: Sequence[Period]) -> None:
    learned = sum(len(passage.spans) for period in periods for passage in period.passages)
    asked = sum(len(row.input_ids) for period in periods for kind in KINDS for row in period.probes[kind])
    tokens = sum(asked + (learned if arm != "base" else 0) for arm, _ in missing)
    cells = " ".join(f"{arm}/{seed}" for arm, seed in missing) or "none"
    _say(f"cells to compute: {cells}; {tokens:,} tokens, about {tokens * SECONDS / 60:.0f} CPU minutes")


def _compute(
    base: Base, periods: Sequence[Period], arm: str, schedule: Schedule, work: Path, seed: int
) -> dict[str, Any]:
    began = time.process_time()
    if arm == "base":
        found = [_scores(base.model, period) for period in periods]
    else:
        weights = _weights(base, periods, arm)
        rows = [row for period in periods for row in period.rows]
        with adapted(base, rows, work / "prefix", rank=schedule.rank, seed=100 + seed) as model:
            found = list(_months(model, periods, weights, schedule, seed))
    names = [period.name for period in periods]
    return {"periods": dict(zip(names, found)), "cpu_s": round(time.process_time() - began, 1)}


def _weights(base: Base, periods: Sequence[Period], arm: str) -> list[list[Tensor]]:
    settings = DocumentSettings.model_validate({"weights": arm})
    prior = find_prior(settings, base.source)
    return [weigh(base, period.passages, settings, prior).values for period in periods]


def _months(
    model: PeftModel, periods: Sequence[Period], weights: Sequence[Sequence[Tensor]], schedule: Schedule, seed: int
) -> Iterator[dict[str, list[float]]]:
    """Learn one period after another with one adapter, and yield what is known of each right after it."""
    for period, of_period in zip(periods, weights, strict=True):
        texts = [passage.encoded for passage in period.passages]
        for _ in epochs(model, texts, of_period, schedule, seed=seed):
            yield _scores(model, period)


def _scores(model: torch.nn.Module, period: Period) -> dict[str, list[float]]:
    found = {kind: score_probes(model, period.probes[kind]).scores for kind in KINDS}
    return {kind: [round(score.nll, 4) for score in scores] for kind, scores in found.items()}


def report(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the Markdown of every table in the file: nats a token, and what is won against uniform weights."""
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        tables.setdefault(json.dumps(line["common"], sort_keys=True), []).append(line)
    return "\n\n".join(_table(one) for one in tables.values()) or "no finished cells"


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    runs: dict[str, dict[int, Mapping[str, Any]]] = {}
    for line in lines:
        runs.setdefault(line["arm"], {})[line["seed"]] = line["periods"]
    columns = [(name, kind) for name in lines[0]["periods"] for kind in KINDS]
    heads = ["arm", "seeds", *(f"{name} {kind}" for name, kind in columns)]
    rows = [heads, ["---"] * len(heads)]
    for arm, by_seed in runs.items():
        cells = [_cell(runs, arm, *column) for column in columns]
        rows.append([arm, " ".join(map(str, sorted(by_seed))), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(runs: Mapping[str, Mapping[int, Mapping[str, Any]]], arm: str, period: str, kind: str) -> str:
    """Return the mean of an arm, and its difference to uniform weights with 95 % over probes and seeds."""
    mean = float(np.mean([one[period][kind] for one in runs[arm].values()]))
    seeds = sorted(runs[arm].keys() & runs.get("uniform", {}).keys())
    if arm in ("base", "uniform") or not seeds:
        return f"{mean:.3f}"
    gap = difference(*(np.array([runs[name][seed][period][kind] for seed in seeds]) for name in (arm, "uniform")))
    return f"{mean:.3f} ({gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}])"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
