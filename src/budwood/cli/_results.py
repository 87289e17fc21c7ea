"""What `adapt` says about a run, before and after, in words and on one screen; `--json` has the whole of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from budwood._texts import shown
from budwood.cli._render import Table
from budwood.reports.shortfall import learned_something, shortfall

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = tuple[str, str]
LISTED = 10  # rows or files that are named, of those dropped and of those to look at


def measured(found: Mapping[str, Any]) -> list[RenderableType]:
    """Return the result of a run; `found` is `Run.summary` with the path as "run"."""
    head = f"{found['run']}: {_adapter(found['method'], found['tuner'])} on {found['base']}\n"
    short = shortfall(found)
    return [head, Table(("", ""), list(_measured(found))), *([f"\n{short}"] if short else [])]


def _measured(found: Mapping[str, Any]) -> Iterator[Row]:
    yield "trained parameters", _parameters(found)
    yield "adapter file", f"{found['adapter_bytes']:,} bytes"
    yield from _rows(found["rows"], f"see `{shlex.join(['budwood', 'report', str(found['run'])])}`")
    stopped = ", stopped early" if found["stopped_early"] else ""
    tokens = f"{found['train_tokens']:,} tokens, {found['supervised_tokens']:,} of them in the loss"
    yield "steps", f"{found['steps']:,} in {shown(found['epochs'])} passes{stopped}; {tokens}"
    yield "loss of the last step", f"{shown(found['final_loss'])} nats a token"
    if found["best_evaluation_loss"] is not None:
        kept = f" after step {found['best_step']}, the one that was kept" if found["best_step"] is not None else ""
        beside = f"; the base has {shown(base)}" if (base := found.get("base_evaluation_loss")) is not None else ""
        yield "loss held out", f"{shown(found['best_evaluation_loss'])} nats a token{kept}{beside}"
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
        one_would_do = nll["chosen"] < nll["base"] and not choice["dynamic_gain"]
        pays = ": here the choice does not pay, one prompt would do" if one_would_do else ""
        yield "prompt chosen", f"{shown(nll['chosen'])}; always the best one {shown(nll['best constant'])}{pays}"
        yield "chosen how often", ", ".join(f"{name} {count}" for name, count in choice["histogram"].items())
    else:
        yield "with the prompt", shown(nll["chosen"])


_RECALL = {
    "other_words": "learned, other words",
    "own_words": "memorised, own words",
    "keep": "kept of what it knew",
    "earlier": "kept of the earlier run",
}


def _recall(recall: Mapping[str, Any]) -> Iterator[Row]:
    """Say what was learned from documents, and what became of what the base knew."""
    for name, words in _RECALL.items():
        if name in recall:
            before, after = recall[name]["before"], recall[name]["after"]
            right = f"{round(after['exact'] * after['probes'])} of {after['probes']} answers right"
            yield words, f"{before['accuracy']:.1%} → {after['accuracy']:.1%} of the answers' tokens; {right}"
    yield "published", f"epoch {shown(recall['best_epoch'])}{_why(recall)} (to keep: {recall['keep_wanted']:.0%})"


def _why(recall: Mapping[str, Any]) -> str:
    if not recall["kept_enough"]:
        return ", which kept most: none kept enough"
    return ", which learned most" if learned_something(recall) else ": nothing new was learned"


def expected(found: Mapping[str, Any]) -> list[RenderableType]:
    """Return what a run would be; `found` is what `_adapt.preview` returns."""
    recipe, training = found["recipe"], found["recipe"]["training"]
    rows = [
        ("run", f"{found['out']}, not written: this is a dry run"),
        ("base", recipe["model"]),
        ("adapter", _adapter(recipe["method"], recipe["tuner"]["name"])),
        ("trained parameters", _parameters(found)),
        *_rows(found["rows"], "--json names more"),
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


def _rows(rows: Mapping[str, Any], more: str) -> Iterator[Row]:
    """Say how many rows there are on either side, and which were dropped or look wrong, each with the reason."""
    counts = {"trained on": rows["train_rows"], "held out": rows["evaluation_rows"]}
    found = {"dropped": rows["dropped"], "to look at": rows["remarks"]}
    counts |= {name: count for name, where in found.items() if (count := _count(where))}
    yield "rows", ", ".join(f"{count:,} {name}" for name, count in counts.items())
    for name, reasons in found.items():
        if reasons:
            yield f"  {name}", "\n".join(_listed(reasons, more))


def _count(reasons: Mapping[str, Any]) -> int:
    return sum(where["count"] for where in reasons.values())


def _listed(reasons: Mapping[str, Any], more: str) -> list[str]:
    """Return a line for each of the first rows or files that a report names, and one for all others."""
    lines = [f"{origin}: {reason}" for reason, where in reasons.items() for origin in where["first"]][:LISTED]
    rest = _count(reasons) - len(lines)
    return lines + [f"and {rest:,} more, {more}"] * bool(rest)


def _verified(report: Mapping[str, Any]) -> str:
    checks = f"{len(report['checks'])} checks in a fresh process"
    return f"{shown(report['ok'])}: {checks}, the saved adapter does bit for bit what was trained"
