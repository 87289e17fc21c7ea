"""Curves of a run as SVG. The same events give the same bytes; text is drawn as outlines, so no font is needed."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Event = Mapping[str, Any]
SIZE_IN = (7.2, 3.4)
STYLE = {
    "svg.fonttype": "path",
    "svg.hashsalt": "budwood",  # else the ids in the file are random
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
TRAINING, EVALUATION = "#3b6ea5", "#c4572e"


def loss_curve(events: Sequence[Event], best_step: int | None) -> str:
    """Return the training loss (as it is, and smoothed) and the evaluation loss over steps, as SVG.

    Args:
        events: of events.jsonl; a value that is missing or null leaves a gap.
        best_step: the step whose adapter was kept; marked if it was evaluated.
    """

    def draw(axes: Axes) -> None:
        steps, losses = _series(events, "loss")
        axes.plot(steps, losses, color=TRAINING, alpha=0.3, linewidth=0.8)
        axes.plot(steps, smoothed(losses), color=TRAINING, label="training, smoothed")
        at, found = _series(events, "eval_loss")
        if at:
            axes.plot(at, found, "o-", color=EVALUATION, markersize=3, label="evaluation")
        if best_step in at:
            best = found[at.index(best_step)]
            axes.plot([best_step], [best], "*", color=EVALUATION, markersize=11, label=f"kept: step {best_step}")
        axes.set_ylabel("loss, nats a token")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)

    return _figure(draw)


def learning_rate_curve(events: Sequence[Event]) -> str:
    """Return the learning rate and the norm of the gradients over steps, as SVG."""

    def draw(axes: Axes) -> None:
        (rate,) = axes.plot(*_series(events, "lr"), color=TRAINING, label="learning rate")
        axes.set_ylabel("learning rate")
        axes.set_ylim(bottom=0)
        norms = axes.twinx()
        (norm,) = norms.plot(
            *_series(events, "grad_norm"), color=EVALUATION, alpha=0.6, linewidth=0.8, label="gradient norm"
        )
        norms.set_ylabel("gradient norm")
        norms.grid(visible=False)
        norms.spines["right"].set_visible(True)
        norms.set_ylim(bottom=0)
        axes.legend(handles=[rate, norm], frameon=False)

    return _figure(draw)


def recall_curve(recall: Mapping[str, Any]) -> str:
    """Return what was learned and what was kept over the epochs, as SVG.

    Args:
        recall: documents/recall.json of a run.
    """

    def draw(axes: Axes) -> None:
        epochs, learn, keep = ([point[name] for point in recall["curve"]] for name in ("epoch", "learn", "keep"))
        axes.plot(epochs, learn, "o-", color=TRAINING, markersize=3, label="learned")
        axes.plot(epochs, keep, "o-", color=EVALUATION, markersize=3, label="kept")
        axes.axhline(recall["keep_wanted"], color=EVALUATION, linewidth=0.8, linestyle=":", label="to be kept")
        axes.axvline(recall["best_epoch"], color="#5b6878", linewidth=0.8, label="published")
        axes.set_ylabel("accuracy")
        axes.set_ylim(0, 1.03)
        axes.legend(frameon=False)

    return _figure(draw, over="epoch")


def smoothed(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Return the exponential moving average, corrected for its start; a NaN is left out of it and stays a NaN."""
    mean, mass, made = 0.0, 0.0, []
    for value in values:
        if math.isnan(value):
            made.append(value)
            continue
        mean, mass = weight * mean + (1 - weight) * value, weight * mass + (1 - weight)
        made.append(mean / mass)
    return made


def _series(events: Iterable[Event], name: str) -> tuple[list[int], list[float]]:
    """Return steps and values of the events that have `name`; null, which stands for NaN or infinity, is NaN."""
    found = [(event["step"], event[name]) for event in events if name in event and "step" in event]
    return [step for step, _ in found], [math.nan if value is None else float(value) for _, value in found]


def _figure(draw: Any, over: str = "step") -> str:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=SIZE_IN, layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel(over)
        draw(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
