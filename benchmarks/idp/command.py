"""The command: computes the cells that are missing, prints the tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

from budwood.errors import UsageError
from budwood.evals.multiple_choice import read_questions
from budwood.models import load_base

from .._table import Line, add_arguments, fill, read, run_command, say
from .cells import cells, compute
from .report import report
from .setting import Setting, Sizes
from .systems import SYSTEMS, UNTRAINED

NAMED = "benchmarks/idp.py", "IDP against others on a compressed model"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(parser(*NAMED), arguments, _run, report, kept="finished cells and trained prompts are kept")


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return the arguments that decide a table."""
    made = argparse.ArgumentParser(prog=prog, description=description)
    made.add_argument("--model", help="the compressed model")
    made.add_argument("--uncompressed", help="the same model before it was compressed")
    made.add_argument("--text", type=Path, nargs="+", default=[], help="plain text; 2 to 8 files are a domain each")
    made.add_argument("--unseen", type=Path, help="text of a domain that nothing is trained on: a control")
    made.add_argument("--questions", type=Path, help="multiple choice, rows of question, choices, answer, task")
    made.add_argument("--only", nargs="+", default=list(SYSTEMS), metavar="SYSTEM", help="; ".join(SYSTEMS))
    for size in fields(Sizes):
        kind = type(size.default)
        made.add_argument(f"--{size.name.replace('_', '-')}", type=kind, default=size.default)
    made.add_argument("--work", type=Path, default=Path("runs/idp-benchmark"), help="folder of trained prompts")
    add_arguments(made, results="idp.jsonl", seeds=3)
    return made


def _run(args: argparse.Namespace) -> None:
    setting = setting_of(args)
    done = read(args.results)
    missing = [cell for cell in cells(setting, args.only, args.seeds) if cell.key not in done]
    trained = sum(cell.system not in UNTRAINED for cell in missing)
    budget = f"{trained} of them trained, on about {setting.tokens_a_cell:,} tokens each at most"
    say(f"table {setting.name}: {len(missing)} cells to compute, {budget}")
    todo = [(cell.key, partial(compute, setting, cell)) for cell in missing]
    fill(args.results, todo, minutes=args.minutes, summary=_summary)


def _summary(line: Line) -> str:
    return f"{line['system']}, seed {line['seed']}: {line['cpu_minutes']} CPU minutes"


def setting_of(args: argparse.Namespace) -> Setting:
    """Return what the arguments say, read and divided."""
    if not (args.model and args.uncompressed and args.text):
        raise UsageError("the table needs its models and its text", wanted="--model, --uncompressed and --text")
    if unknown := [name for name in args.only if name not in SYSTEMS]:
        raise UsageError(f"there is no system {unknown[0]!r}", wanted=f"one of: {'; '.join(SYSTEMS)}")
    compressed, uncompressed = (
        load_base(one, dtype=args.dtype, device=args.device) for one in (args.model, args.uncompressed)
    )
    sizes = Sizes(**{size.name: getattr(args, size.name) for size in fields(Sizes)})
    questions = list(read_questions(args.questions)) if args.questions else []
    return Setting.read((compressed, uncompressed), args.text, questions, sizes, args.work, args.unseen)
