"""The command: computes the cells that are missing, prints the tables."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from budwood.errors import BudwoodError, InterruptedRunError, UsageError
from budwood.evals.multiple_choice import read_questions
from budwood.models import load_base

from ..instructions.results import append, read
from .cells import cells, compute
from .report import report
from .setting import Setting, Sizes
from .systems import SYSTEMS, UNTRAINED

RESULTS = Path(__file__).parents[1] / "results" / "idp.jsonl"


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
        print("interrupted; finished cells and trained prompts are kept", file=sys.stderr)
        return InterruptedRunError.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/idp.py", description="IDP against others on a compressed model")
    parser.add_argument("--model", help="the compressed model")
    parser.add_argument("--uncompressed", help="the same model before it was compressed")
    parser.add_argument("--text", type=Path, nargs="+", default=[], help="plain text; 2 to 8 files are a domain each")
    parser.add_argument("--questions", type=Path, help="multiple choice, rows of question, choices, answer, task")
    parser.add_argument("--only", nargs="+", default=list(SYSTEMS), metavar="SYSTEM", help="; ".join(SYSTEMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the bases; auto: bf16 where the device multiplies in it")
    for size in fields(Sizes):
        kind = type(size.default)
        parser.add_argument(f"--{size.name.replace('_', '-')}", type=kind, default=size.default)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after so many minutes")
    parser.add_argument("--work", type=Path, default=Path("runs/idp-benchmark"), help="folder of trained prompts")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only print the tables of the results")
    return parser


def _run(args: argparse.Namespace) -> None:
    setting = _setting(args)
    done, start = read(args.results), time.monotonic()
    missing = [cell for cell in cells(setting, args.only, args.seeds) if cell.key not in done]
    trained = sum(cell.system not in UNTRAINED for cell in missing)
    budget = f"{trained} of them trained, on about {setting.tokens_a_cell:,} tokens each at most"
    print(f"table {setting.name}: {len(missing)} cells to compute, {budget}", file=sys.stderr)
    for cell in missing:
        if time.monotonic() - start > 60 * args.minutes:
            print("the time is up; the same command goes on from here", file=sys.stderr)
            return
        line = compute(setting, cell)
        append(args.results, line)
        print(f"{cell.system}, seed {cell.seed}: {line['cpu_minutes']} CPU minutes", file=sys.stderr)


def _setting(args: argparse.Namespace) -> Setting:
    if not (args.model and args.uncompressed and args.text):
        raise UsageError("the table needs its models and its text", wanted="--model, --uncompressed and --text")
    if unknown := [name for name in args.only if name not in SYSTEMS]:
        raise UsageError(f"there is no system {unknown[0]!r}", wanted=f"one of: {'; '.join(SYSTEMS)}")
    compressed, uncompressed = (
        load_base(one, dtype=args.dtype, device=args.device) for one in (args.model, args.uncompressed)
    )
    sizes = Sizes(**{size.name: getattr(args, size.name) for size in fields(Sizes)})
    questions = list(read_questions(args.questions)) if args.questions else []
    return Setting.read((compressed, uncompressed), args.text, questions, sizes, args.work)
