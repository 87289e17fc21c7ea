"""Pictures of a table, from the lines of its results alone; and one of layers, from what `similarity` measures.

Each is a list of panels; it is empty where the lines are not enough for it.

| picture | after | shows |
| --- | --- | --- |
| lengths | Fig. 3 of arXiv 2310.00867 | perplexity and accuracy over the length of a single prompt |
| similarity | Fig. 6 | how like the uncompressed model's the attention and the states of each layer are |
| short-and-long | Fig. 7 | what several short prompts give and one long prompt, over the vectors that a text gets |
| choices | | what each selector chooses for the texts of each domain |
| margins | | how much hangs on the choice, text by text, and how much of it each selector loses |
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from budwood.reports.figures import EVALUATION, STYLE, TRAINING

from .setting import UNSEEN

Line = Mapping[str, Any]
PANEL_IN = (4.6, 3.4)
MARKERS = "osv^<>"
Draw = Callable[[Axes], None]


@dataclass(frozen=True)
class Point:
    """What a system gives at the price of so many vectors a text.

    Attributes:
        name: the system, and what chose or how long it was trained.
        vectors: the mean length of what stands in front of a text.
        nll: nats a scored token, texts of the control left out.
        accuracy: share of right answers, where questions were asked.
    """

    name: str
    vectors: float
    nll: float
    accuracy: float | None = None


def mean_nll(line: Line, nll: Sequence[float]) -> float:
    """Return the mean over scored tokens of one number a text."""
    weights = np.array(line["tokens"]) * (np.array(line["domains"]) != UNSEEN)
    return float((np.array(nll) * weights).sum() / weights.sum())


def single_prompts(lines: Sequence[Line]) -> list[Point]:
    """Return the prompts that were trained on all text, each alone; what differs in steps differs in name."""
    points = []
    for line in lines:
        trained, steps = len(set(line["domains"]) - {UNSEEN}), line["sizes"]["steps"]
        times = {"mixed, max n": 1, "mixed, sum n": trained}.get(line["system"])
        if times is not None:
            name, n = f"one prompt, {trained * steps} steps", times * line["sizes"]["tokens"]
            accuracy = line["accuracy"]["accuracy"] if "accuracy" in line else None
            points.append(Point(name, n, mean_nll(line, line["nll"]), accuracy))
        elif line["system"] != "bank" and "alone" in line:
            alone = zip(lengths_of(line), line["alone"].values(), strict=True)
            points += [Point(f"one prompt, {steps} steps", n, mean_nll(line, nll)) for n, nll in alone]
    return points


def lengths_of(line: Line) -> list[int]:
    """Return the vectors of each prompt of a bank: the number at the end of its name, or the table's."""
    ends = [re.search(r"\d+$", name) for name in line["alone"]]
    return [int(end[0]) if end and line["system"] != "bank" else line["sizes"]["tokens"] for end in ends]


def chosen_points(line: Line) -> list[Point]:
    """Return what each selector of a bank gives, and the oracle."""
    alone, lengths = np.array(list(line["alone"].values())), np.array(lengths_of(line))
    choices = line["chosen"] | {"oracle": alone.argmin(axis=0).tolist()}
    at = np.arange(alone.shape[1])
    return [
        Point(f"{line['system']}, {name}", float(lengths[chosen].mean()), mean_nll(line, alone[chosen, at]))
        for name, chosen in choices.items()
    ]


def lengths(lines: Sequence[Line]) -> list[Draw]:
    """Return the panel of perplexity and accuracy over the length of a prompt."""
    singles = _by_name(single_prompts(lines))

    def draw(axes: Axes) -> None:
        axes.set_xlabel("vectors of the prompt")
        axes.set_ylabel("perplexity", color=TRAINING)
        right = None
        for (name, of), marker in zip(singles.items(), MARKERS):
            xs, ys = _means([(point.vectors, math.exp(point.nll)) for point in of])
            axes.plot(xs, ys, f"{marker}-", color=TRAINING, markersize=4, label=name)
            known = [(point.vectors, point.accuracy) for point in of if point.accuracy is not None]
            if known:
                right = right or axes.twinx()
                right.plot(*_means(known), f"{marker}--", color=EVALUATION, markersize=4)
                right.set_ylabel("accuracy", color=EVALUATION)
                right.grid(visible=False)
        axes.legend(frameon=False, fontsize=6)

    return [draw] if singles else []


def short_and_long(lines: Sequence[Line]) -> list[Draw]:
    """Return the panel of single prompts as lines, and of banks as marks beside them."""
    singles = _by_name(single_prompts(lines))
    banks = _by_name([point for line in lines if "alone" in line for point in chosen_points(line)])

    def draw(axes: Axes) -> None:
        axes.set_xlabel("vectors in front of a text, mean")
        axes.set_ylabel("nats a token")
        for (name, of), marker in zip(singles.items(), MARKERS):
            axes.plot(*_means([(p.vectors, p.nll) for p in of]), f"{marker}-", color="0.4", markersize=4, label=name)
        for name, of in banks.items():
            axes.plot(np.mean([p.vectors for p in of]), np.mean([p.nll for p in of]), "D", markersize=5, label=name)
        axes.legend(frameon=False, fontsize=6)

    return [draw] if singles else []


def _by_name(points: Sequence[Point]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.name, []).append(point)
    return found


def choices(lines: Sequence[Line]) -> list[Draw]:
    """Return a panel for each selector of the bank: shares of its prompts in each domain, over all seeds."""
    of = [line for line in lines if line["system"] == "bank"]
    if not of:
        return []
    prompts, domains = list(of[0]["alone"]), list(dict.fromkeys(of[0]["domains"]))

    def panel(selector: str) -> Draw:
        counts = np.zeros((len(prompts), len(domains)))
        for line in of:
            for domain, chosen in zip(line["domains"], line["chosen"][selector], strict=True):
                counts[chosen, domains.index(domain)] += 1

        def draw(axes: Axes) -> None:
            axes.set_title(selector)
            below = np.zeros(len(domains))
            for name, row in zip(prompts, counts / counts.sum(axis=0), strict=True):
                axes.bar(domains, row, bottom=below, label=f"prompt {name}")
                below += row
            axes.set_xlabel("domain of the text")
            axes.set_ylabel("share of the texts")
            axes.set_ylim(0, 1.2)
            axes.set_axisbelow(True)
            axes.legend(frameon=False, fontsize=6, ncols=len(prompts), loc="upper center")

        return draw

    return [panel(selector) for selector in of[0]["chosen"]]


def margins(lines: Sequence[Line]) -> list[Draw]:
    """Return the panel of distributions over texts: what the second best prompt and each choice lose to the best."""
    of = [line for line in lines if line["system"] == "bank"]
    losses: dict[str, list[float]] = {}
    for line in of:
        alone = np.array(list(line["alone"].values()))
        ordered = np.sort(alone, axis=0)
        losses.setdefault("second best", []).extend(ordered[1] - ordered[0])
        losses.setdefault("random, mean", []).extend(alone.mean(axis=0) - ordered[0])
        for name, chosen in line["chosen"].items():
            losses.setdefault(name, []).extend(alone[chosen, np.arange(alone.shape[1])] - ordered[0])

    def draw(axes: Axes) -> None:
        for name, values in losses.items():
            style = "--" if name in ("second best", "random, mean") else "-"
            axes.plot(np.sort(values), np.arange(1, len(values) + 1) / len(values), style, label=name)
        axes.set_xlabel("nats a token over the best prompt")
        axes.set_ylabel("share of the texts")
        axes.set_ylim(0, 1.03)
        axes.legend(frameon=False, fontsize=6)

    return [draw] if of else []


def similarity(measured: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Draw]:
    """Return the panels of attention and of states.

    Args:
        measured: of each system, "attention" and "states": a cosine a layer.
    """

    def panel(kind: str) -> Draw:
        def draw(axes: Axes) -> None:
            for name, of in measured.items():
                axes.plot(range(len(of[kind])), of[kind], "o-", markersize=2.5, label=name)
            axes.set_title({"attention": "output of attention", "states": "states after the layer"}[kind])
            axes.set_xlabel("layer")
            axes.set_ylabel("cosine to the uncompressed model")
            axes.legend(frameon=False, fontsize=6)

        return draw

    return [panel("attention"), panel("states")]


def drawn(panels: Sequence[Draw], form: str) -> bytes:
    """Return panels side by side as a file of this form, "svg" or "png"; the same panels give the same bytes."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(PANEL_IN[0] * len(panels), PANEL_IN[1]), layout="constrained", dpi=150)
        for axes, draw in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            draw(axes)
        file = io.BytesIO()
        figure.savefig(file, format=form, metadata={"Date" if form == "svg" else "Software": None})
    return file.getvalue()


def _means(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return the places in order, and the mean of what is known at each."""
    places = sorted({place for place, _ in points})
    return places, [float(np.mean([value for at, value in points if at == place])) for place in places]
