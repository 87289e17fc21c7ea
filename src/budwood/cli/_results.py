"""What `adapt` says about a run, before and after, in words and on one screen; `--json` has the whole of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from budwood._texts import shown
from budwood.cli._render import Table

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = tuple[str, str]


def measured(found: Mapping[str, Any]) -> list[RenderableType]:
    """Return the result of a run; `found` is `Run.summary` with the path as "run"."""
    head = f"{found['run']}: {_adapter(found['method'], found['tuner'])} on {found['base']}\n"
    return [head, Table(("", ""), list(_measured(found)))]


def _measured(found: Mapping[str, Any]) -> Iterator[Row]:
    yield "trained parameters", _parameters(found)
    yield "adapter file", f"{found['adapter_bytes']:,} bytes"
    yield "rows", _rows(found["rows"])
    stopped = ", stopped early" if found["stopped_early"] else ""
    tokens = f"{found['train_tokens']:,} tokens, {found['supervised_tokens']:,} of them in the loss"
    yield "steps", f"{found['steps']:,} in {shown(found['epochs'])} passes{stopped}; {tokens}"
    yield "loss of the last step", f"{shown(found['final_loss'])} nats a token"
    if found["best_evaluation_loss"] is not None:
        kept = f" after step {found['best_step']}, the one that was kept" if found["best_step"] is not None else ""
        yield "loss held out", f"{shown(found['best_evaluation_loss'])} nats a token{kept}"
    if found.get("choice"):
        yield from _choice(found["choice"])
    if found.get("recall"):
        yield from _recall(found["recall"])
    memory = f"; peak memory {found['peak_memory_mib']:,.0f} MiB" if found["peak_memory_mib"] is not None else ""
    yield "time", f"{shown(found['wall_s'])} s, {shown(found['tokens_per_s'])} tokens a second{memory}"
    yield "verified", _verified(found["verify"])


def _choice(choice: Mapping[str, Any]) -> Iterator[Row]:
    """Say what choosing a prompt for each text gave, beside one prompt for all of them."""
    nll = choice["nll"]
    yield "without prompts", f"{shown(nll['base'])} nats a token on the second halves of {choice['texts']} texts"
    if len(choice["histogram"]) > 1:
        pays = "" if choice["dynamic_gain"] else ": here the choice does not pay, one prompt would do"
        yield "prompt chosen", f"{shown(nll['chosen'])}; always the best one {shown(nll['best constant'])}{pays}"
        yield "chosen how often", ", ".join(f"{name} {count}" for name, count in choice["histogram"].items())
    else:
        yield "with the prompt", shown(nll["chosen"])


_RECALL = {"other_words": "learned, other words", "own_words": "memorised, own words", "keep": "kept of what it knew"}


def _recall(recall: Mapping[str, Any]) -> Iterator[Row]:
    """Say what was learned from documents, and what became of what the base knew."""
    for name, words in _RECALL.items():
        if name in recall:
            before, after = recall[name]["before"], recall[name]["after"]
            right = f"{round(after['exact'] * after['probes'])} of {after['probes']} answers right"
            yield words, f"{before['accuracy']:.1%} → {after['accuracy']:.1%} of the answers' tokens; {right}"
    why = "learned most" if recall["kept_enough"] else "kept most: none kept enough"
    yield "published", f"epoch {shown(recall['best_epoch'])}, which {why} (to keep: {recall['keep_wanted']:.0%})"


def expected(found: Mapping[str, Any]) -> list[RenderableType]:
    """Return what a run would be; `found` is what `_adapt.preview` returns."""
    recipe, training = found["recipe"], found["recipe"]["training"]
    rows = [
        ("run", f"{found['out']}, not written: this is a dry run"),
        ("base", recipe["model"]),
        ("adapter", _adapter(recipe["method"], recipe["tuner"]["name"])),
        ("trained parameters", _parameters(found)),
        ("rows", _rows(found["rows"])),
        (
            "tokens in a pass",
            f"{found['rows']['tokens']:,}, {found['rows']['supervised_tokens']:,} of them in the loss",
        ),
        ("longest row", f"{found['rows']['length_tokens']['max']:,} tokens"),
        ("batch", f"{training['batch_size']} rows, {training['accumulate']} for each step"),
        ("steps", f"{found['steps']:,}, the first {found['warmup_steps']} of them warm-up"),
        ("learning rate", f"{shown(training['learning_rate'])}, {training['schedule']}"),
        ("seed", str(recipe["seed"])),
    ]
    return [Table(("", ""), rows), "\n--json shows the whole recipe"]


def _adapter(method: str, tuner: str) -> str:
    return method if method == tuner else f"{method} with the tuner {tuner}"


def _parameters(found: Mapping[str, Any]) -> str:
    beside = "".join(f" ({row['adapter']}: {row['parameters']:,})" for row in found["comparison"][1:])
    return f"{found['trainable_params']:,}{beside}"


def _rows(rows: Mapping[str, Any]) -> str:
    """Return how many rows there are on either side, and why others were dropped."""
    parts = [f"{rows['train_rows']:,} trained on", f"{rows['evaluation_rows']:,} held out"]
    parts += [f"{where['count']:,} dropped ({reason})" for reason, where in rows["dropped"].items()]
    parts += [f"{where['count']:,} to look at ({reason})" for reason, where in rows["remarks"].items()]
    return ", ".join(parts)


def _verified(report: Mapping[str, Any]) -> str:
    return f"{shown(report['ok'])}: {len(report['checks'])} checks in a fresh process, bit for bit"
