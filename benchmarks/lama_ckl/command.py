"""The command: says what is going to be computed, computes the cells that are missing, prints the tables."""

from __future__ import annotations

import argparse
import dataclasses
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
from .arms import GROUPS, Arm, choose_arms
from .facts import Facts, digest
from .learning import Look, Probes, Schedule, adapted, learn
from .plan import cost, tokens_of
from .report import report
from .scorers import Workshop
from .shapes import normalisation
from .studies import STUDIES, choose_studies, compute_study
from .weighting import make_weights

RESULTS = Path(__file__).parents[1] / "results" / "lama_ckl.jsonl"
VERSION = 2  # raise it when a change here makes old cells no longer comparable


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
    groups = ", ".join(GROUPS)
    parser = argparse.ArgumentParser(prog="benchmarks/lama_ckl.py", description="token weights on facts to learn")
    parser.add_argument("--data", type=Path, help="folder of the resampled LAMA-ckl: its splits/*.jsonl")
    parser.add_argument("--base", default="smollm2", help="the base model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the base; auto: bf16 where the device multiplies in it")
    parser.add_argument("--arms", nargs="*", default=["headline"], help=f"names, groups ({groups}), or 'all'")
    parser.add_argument("--studies", nargs="*", default=[], help=f"{', '.join(STUDIES)}, or 'all'")
    parser.add_argument("--to-learn", default="to_learn_dev_cpu", help="the split that is learned")
    parser.add_argument("--to-keep", default="not_to_forget_dev", help="the split of facts that should stay known")
    parser.add_argument("--vocabulary", default="to_learn_dev", help="the split with other facts of its relations")
    parser.add_argument("--most", type=int, default=3, help="facts of a relation with one and the same object")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=Schedule.epochs)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after so many minutes")
    parser.add_argument("--threads", type=int, help="threads of torch")
    parser.add_argument("--work", type=Path, default=Path("runs/lama_ckl"), help="folder of what is kept between runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plan", action="store_true", help="only say which cells are missing and what they cost")
    parser.add_argument("--report", action="store_true", help="only print the tables of the results")
    return parser


def _run(args: argparse.Namespace) -> None:
    if args.data is None:
        raise UsageError("no data were given", action="give the folder: --data DIR")
    if args.threads:
        torch.set_num_threads(args.threads)
    arms, studies = choose_arms(args.arms), choose_studies(args.studies)
    # Eager attention: forward-mode derivatives go through it, and so J_t can be measured in bf16.
    base = load_base(args.base, dtype=args.dtype, device=str(choose_device(args.device)), attention="eager")
    splits = args.data / "splits" if (args.data / "splits").is_dir() else args.data
    schedule = Schedule(epochs=args.epochs)
    shop = Workshop(base, OffsetTokens(base.tokenizer), splits, args.work, schedule, args.vocabulary)
    table = _Table(shop, args)
    missing, absent = table.missing_cells(arms, args.seeds), table.missing_studies(studies)
    facts = shop.facts(args.to_learn, most=args.most)
    _announce(table, missing, absent, facts, args.epochs)
    if args.plan:
        return
    began = time.monotonic()
    for name in absent:
        if table.stopped(began):
            return
        table.add_study(name)
    if not missing:
        return
    probes = Probes(facts.descriptive, facts.foils, _known(shop, shop.facts(args.to_keep)))
    _say(f"{len(facts)} facts to learn, {len(probes.keep)} to keep")
    for arm, seed in missing:
        if table.stopped(began):
            return
        table.add_cell(arm, seed, facts, probes)


class _Table:
    """The cells of one setting of the command, and the file they are kept in."""

    def __init__(self, shop: Workshop, args: argparse.Namespace) -> None:
        self.shop, self.results, self._minutes = shop, args.results, args.minutes
        self._common = {
            "version": VERSION,
            "data": digest(shop.data),
            "to_learn": args.to_learn,
            "to_keep": args.to_keep,
            "most": args.most,
            "base": str(shop.base.source.reference),
            "fingerprint": shop.base.source.fingerprint,
            "dtype": str(shop.base.model.dtype).removeprefix("torch."),
            "device": shop.base.model.device.type,
        }

    def common(self, arm: Arm | None = None) -> dict[str, Any]:
        """Return what an arm's cell has in common with those it is compared with."""
        epochs = arm.epochs if arm is not None and arm.epochs else self.shop.schedule.epochs
        return {**self._common, "schedule": vars(dataclasses.replace(self.shop.schedule, epochs=epochs))}

    def missing_cells(self, arms: Sequence[Arm], seeds: int) -> list[tuple[Arm, int]]:
        done = read(self.results)
        return [(arm, seed) for seed in range(seeds) for arm in arms if self._key(arm, seed) not in done]

    def missing_studies(self, names: Sequence[str]) -> list[str]:
        done = read(self.results)
        return [name for name in names if self._study_key(name) not in done]

    def finished(self) -> list[dict[str, Any]]:
        """Return the cells of arms under these settings, of whatever schedule."""
        lines = read(self.results).values()
        return [one for one in lines if "arm" in one and one["common"].items() >= self._common.items()]

    def stopped(self, began: float) -> bool:
        """Whether the minutes are over; says so."""
        over = time.monotonic() - began > 60 * self._minutes
        if over:
            _say("stopped here; the same command goes on with the next cell")
        return over

    def add_cell(self, arm: Arm, seed: int, facts: Facts, probes: Probes) -> None:
        key = self._key(arm, seed)
        if key in read(self.results):  # another process may have computed it meanwhile
            return
        schedule = Schedule(**self.common(arm)["schedule"])
        line = _compute(self.shop, arm, facts, probes, schedule, seed)
        append(self.results, {"key": key, "arm": arm.name, "seed": seed} | line | {"common": self.common(arm)})
        _say(_summary(arm, seed, line))

    def add_study(self, name: str) -> None:
        began = time.perf_counter()
        found = compute_study(self.shop, name)
        minutes = round((time.perf_counter() - began) / 60, 3)
        line = {"key": self._study_key(name), "study": name, "minutes": minutes, "when": _now(), "machine": _machine()}
        append(self.results, line | found | {"common": self.common()})
        _say(f"study {name}: {minutes:.1f} minutes")

    def _key(self, arm: Arm, seed: int) -> str:
        return _digest([self.common(arm), arm.name, repr(arm), seed])[:16]

    def _study_key(self, name: str) -> str:
        return _digest([self.common(), "study", name])[:16]


def _announce(
    table: _Table, missing: Sequence[tuple[Arm, int]], absent: Sequence[str], facts: Facts, epochs: int
) -> None:
    tokens, minutes = cost(missing, facts, epochs, table.finished())
    cells = " ".join(f"{arm.name}/{seed}" for arm, seed in missing) or "none"
    _say(f"cells to compute: {cells}; studies: {' '.join(absent) or 'none'}")
    _say(
        f"{tokens:,} tokens to train on, about {minutes:.0f} CPU minutes (studies: a minute or two each, not counted)"
    )


def _known(shop: Workshop, facts: Facts) -> list[Encoded]:
    """Return the probes of facts that this base knows in this precision; what it does not know it cannot forget."""
    scores = score_probes(shop.base.model, facts.descriptive, batch_size=16).scores
    return [probe for probe, score in zip(facts.descriptive, scores) if score.exact]


def _compute(shop: Workshop, arm: Arm, facts: Facts, probes: Probes, schedule: Schedule, seed: int) -> dict[str, Any]:
    began, cpu_began = time.perf_counter(), time.process_time()
    weights, made = make_weights(shop, arm, facts)
    prepared = time.process_time()
    texts = [passage.encoded for passage in facts.passages]
    normalise = normalisation(arm.shape)
    with adapted(
        shop.base, [*texts, *probes.rows], shop.work / "prefix", rank=schedule.rank, seed=100 + seed
    ) as model:
        looks = list(learn(model, texts, weights, probes, schedule, seed=seed, normalise=normalise))
    return {
        "weights": made,
        "looks": [_packed(look) for look in looks],
        "tokens": tokens_of(facts),
        "preparing_cpu_s": round(prepared - cpu_began, 2),
        "training_cpu_s": round(time.process_time() - prepared, 2),
        "minutes": round((time.perf_counter() - began) / 60, 3),
        "when": _now(),
        "machine": _machine(),
    }


def _packed(look: Look) -> dict[str, Any]:
    values = {name: getattr(look, name) for name in ("learn", "nll", "keep", "margin")}
    return {"epoch": look.epoch} | {
        name: [None if one is None else round(one, 4) for one in several] for name, several in values.items()
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
