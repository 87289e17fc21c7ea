"""The command: says what the run will cost, computes the cells that are missing, prints the tables."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from budwood.data.render import Renderer
from budwood.errors import BudwoodError, InterruptedRunError, UsageError
from budwood.models import choose_device, load_base

from .arms import Arm, choose_arms
from .learning import Schedule
from .report import report
from .results import Cell, Table, append, read
from .running import FORWARD_SHARE, TRIAL_STEPS, Bench, chosen_rates, compute, final_cells, measure, search_cells
from .tasks import DEV_ROWS, SELECTION_ROWS, SUBSETS, VALIDATION_ROWS, load_corpus

RESULTS = Path(__file__).parents[1] / "results" / "instructions.jsonl"
STEPS = (25, 60)  # of a trial, and of a final run


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
        _say("interrupted; the cell that was being computed is lost, the finished ones are kept")
        return InterruptedRunError.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/instructions.py", description="GIFT and others on instructions")
    parser.add_argument("--data", type=Path, help="folder of the corpus: train.jsonl and dev.jsonl")
    parser.add_argument("--base", default="smollm2", help="the base model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the base; auto: bf16 where the device multiplies in it")
    parser.add_argument("--arms", nargs="+", default=["headline"], help="names of arms, 'headline' or 'variants'")
    parser.add_argument("--stage", choices=("search", "final", "all"), default="all")
    parser.add_argument("--subset", choices=tuple(SUBSETS), default="full")
    parser.add_argument("--seeds", type=int, default=5, help="no arm gets more final runs than this")
    parser.add_argument("--search-steps", type=int, default=STEPS[0], help="steps of a trial of a learning rate")
    parser.add_argument("--final-steps", type=int, default=STEPS[1], help="steps of a final run")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after so many minutes")
    parser.add_argument("--cells", type=int, default=sys.maxsize, help="compute at most so many cells")
    parser.add_argument("--threads", type=int, help="threads of torch")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only print the tables of the results")
    return parser


def _run(args: argparse.Namespace) -> None:
    if args.data is None:
        raise UsageError("no corpus was given", action="give its folder: --data DIR")
    if args.threads:
        torch.set_num_threads(args.threads)
    arms = _runnable(choose_arms(args.arms))
    bench = _bench(args)
    done = read(args.results)
    _announce(bench, arms, args, set(done))
    began, count = time.monotonic(), 0
    for stage in ("search", "final") if args.stage == "all" else (args.stage,):
        for arm, cell in _cells(bench, arms, stage, args):
            if cell.key in read(args.results):  # another process may have computed it meanwhile
                continue
            if count >= args.cells or time.monotonic() - began > 60 * args.minutes:
                _say("stopped here; the same command goes on with the next cell")
                return
            line = compute(bench, arm, cell)
            append(args.results, line)
            count += 1
            _say(_summary(line))


def _runnable(arms: Sequence[Arm]) -> list[Arm]:
    kept = []
    for arm in arms:
        built = arm.build() if arm.tuner else None
        if isinstance(built, str):
            _say(f"skipped {arm.name}: {built}")
        else:
            kept.append(arm)
    if not kept:
        raise UsageError("none of these arms can be run")
    return kept


def _bench(args: argparse.Namespace) -> Bench:
    device = choose_device(args.device)
    # Eager attention is a fifth faster than SDPA for windows this short on a CPU.
    attention = "eager" if device.type == "cpu" else "auto"
    base = load_base(args.base, dtype=args.dtype, device=str(device), attention=attention)
    corpus = load_corpus(args.data, SUBSETS[args.subset], Renderer(base.tokenizer, "plain"))
    steps = {"search": args.search_steps, "final": args.final_steps}
    schedules = {stage: Schedule(count) for stage, count in steps.items()}
    common = {name: value for name, value in vars(schedules["final"]).items() if name != "steps"}
    table = Table(
        subset=args.subset,
        tasks=SUBSETS[args.subset],
        data=corpus.digest,
        base=str(base.source.reference),
        fingerprint=base.source.fingerprint,
        dtype=str(base.model.dtype).removeprefix("torch."),
        device=device.type,
        schedule={**common, "betas": list(common["betas"]), "steps": steps},
    )
    return Bench(base, corpus, table, schedules)


def _cells(bench: Bench, arms: Sequence[Arm], stage: str, args: argparse.Namespace) -> list[tuple[Arm, Cell]]:
    by_name = {arm.name: arm for arm in arms}
    if stage == "search":
        cells = list(search_cells(bench, arms))
    else:
        rates = chosen_rates(bench, arms, read(args.results))
        for arm in arms:
            if arm.tuner and arm.name not in rates:
                _say(f"no final run of {arm.name}: its search is not complete")
        cells = list(final_cells(bench, arms, rates, args.seeds))
    return [(by_name[cell.arm], cell) for cell in cells]


def _announce(bench: Bench, arms: Sequence[Arm], args: argparse.Namespace, done: set[str]) -> None:
    """Say what is going to be computed, how many tokens that is and how long it takes."""
    cells = [] if args.stage == "final" else list(search_cells(bench, arms))
    if args.stage != "search":
        cells += final_cells(bench, arms, {arm.name: 0.0 for arm in arms}, args.seeds)  # the rate costs nothing
    missing = [cell for cell in cells if cell.key not in done]
    trained, evaluated = bench.tokens(missing)
    tasks, dev = len(bench.corpus.tasks), len(bench.corpus.dev)
    _say(
        f"table {bench.table.name}: {tasks} tasks, {tasks * VALIDATION_ROWS} validation rows, "
        f"{tasks * SELECTION_ROWS} selection rows, {dev * DEV_ROWS} rows of {dev} other tasks"
    )
    _say(f"arms: {', '.join(arm.name for arm in arms)}")
    _say(f"at most {len(missing)} cells to compute: {trained:,} tokens to train on, {evaluated:,} to evaluate")
    adapted = next((arm for arm in arms if arm.tuner), None)
    if adapted is not None:
        trial = measure(bench, adapted)
        parts = (trained + FORWARD_SHARE * evaluated) / trial.tokens / 60  # how many trials fit, a minute each second
        _say(
            f"{adapted.name}, {TRIAL_STEPS} steps: {trial.tokens / trial.seconds:.0f} tokens/s in training; "
            f"all of it takes about {parts * trial.seconds:.0f} minutes, {parts * trial.cpu_seconds:.0f} of CPU time"
        )


def _summary(line: dict) -> str:
    head = f"{line['stage']} {line['arm']} lr {line['learning_rate']:g} seed {line['seed']}: "
    if line["diverged"]:
        return head + "diverged"
    figures = [
        f"{part} {100 * line[part]['exact']:.1f} % exact, {line[part]['nll_per_token']:.4f} nats a token"
        for part in ("selection", "validation", "dev")
        if part in line
    ]
    if line["losses"]:
        figures.append(f"last loss {line['losses'][-1]:.3f}, {line['tokens_per_s']:.0f} tokens/s")
    return head + "; ".join([*figures, f"{line['minutes']:.1f} min ({line['cpu_minutes']:.1f} of CPU)"])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
