"""The command: says what the run will cost, computes the cells that are missing, prints the tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from budwood.data.render import Renderer
from budwood.errors import UsageError
from budwood.models import choose_device, load_base

from .._table import Todo, add_arguments, fill, read, run_command, say
from .arms import Arm, choose_arms
from .learning import Schedule
from .report import report
from .results import Cell, Table
from .running import FORWARD_SHARE, TRIAL_STEPS, Bench, chosen_rates, compute, final_cells, measure, search_cells
from .tasks import DEV_ROWS, SELECTION_ROWS, SUBSETS, VALIDATION_ROWS, load_corpus

STEPS = (25, 60)  # of a trial, and of a final run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    kept = "the cell that was being computed is lost, the finished ones are kept"
    return run_command(_parser(), arguments, _run, report, kept=kept)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/instructions.py", description="GIFT and others on instructions")
    parser.add_argument("--data", type=Path, help="folder of the corpus: train.jsonl and dev.jsonl")
    parser.add_argument("--base", default="smollm2", help="the base model")
    parser.add_argument("--arms", nargs="+", default=["headline"], help="names of arms, 'headline' or 'variants'")
    parser.add_argument("--stage", choices=("search", "final", "all"), default="all")
    parser.add_argument("--subset", choices=tuple(SUBSETS), default="full")
    parser.add_argument("--search-steps", type=int, default=STEPS[0], help="steps of a trial of a learning rate")
    parser.add_argument("--final-steps", type=int, default=STEPS[1], help="steps of a final run")
    parser.add_argument("--cells", type=int, default=sys.maxsize, help="compute at most so many cells")
    parser.add_argument("--threads", type=int, help="threads of torch")
    add_arguments(parser, results="instructions.jsonl", seeds=5, seeds_help="no arm gets more final runs than this")
    return parser


def _run(args: argparse.Namespace) -> None:
    if args.data is None:
        raise UsageError("no corpus was given", action="give its folder: --data DIR")
    if args.threads:
        torch.set_num_threads(args.threads)
    arms = _runnable(choose_arms(args.arms))
    bench = _bench(args)
    _announce(bench, arms, args, set(read(args.results)))
    todo = _todo(bench, arms, args)
    fill(args.results, todo, minutes=args.minutes, cells=args.cells, summary=_summary)


def _todo(bench: Bench, arms: Sequence[Arm], args: argparse.Namespace) -> Todo:
    """Yield the cells of the stages in turn: the searches decide which the final ones are."""
    for stage in ("search", "final") if args.stage == "all" else (args.stage,):
        for arm, cell in _cells(bench, arms, stage, args):
            yield cell.key, partial(compute, bench, arm, cell)


def _runnable(arms: Sequence[Arm]) -> list[Arm]:
    kept = []
    for arm in arms:
        built = arm.build() if arm.tuner else None
        if isinstance(built, str):
            say(f"skipped {arm.name}: {built}")
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
                say(f"no final run of {arm.name}: its search is not complete")
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
    say(
        f"table {bench.table.name}: {tasks} tasks, {tasks * VALIDATION_ROWS} validation rows, "
        f"{tasks * SELECTION_ROWS} selection rows, {dev * DEV_ROWS} rows of {dev} other tasks"
    )
    say(f"arms: {', '.join(arm.name for arm in arms)}")
    say(f"at most {len(missing)} cells to compute: {trained:,} tokens to train on, {evaluated:,} to evaluate")
    adapted = next((arm for arm in arms if arm.tuner), None)
    if adapted is not None:
        trial = measure(bench, adapted)
        parts = (trained + FORWARD_SHARE * evaluated) / trial.tokens / 60  # how many trials fit, a minute each second
        say(
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
