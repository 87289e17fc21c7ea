"""One static page about one run. It opens without a network and runs no script; every text of the run is escaped."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from budwood import storage
from budwood._texts import shown
from budwood.reports.documents import FORGOTTEN, learned, strips
from budwood.reports.figures import learning_rate_curve, loss_curve, recall_curve
from budwood.reports.files import RunFiles, read_run
from budwood.reports.settings import counts, groups, labelled
from budwood.reports.shortfall import shortfall

PAGE = "page.html"
SAMPLES = 20  # answers that are shown


def write_report(run: str | Path, out: str | Path | None = None) -> dict[str, Any]:
    """Write the report of a run: `index.html`, and its figures beside it as files.

    Args:
        run: a run folder, whatever its state.
        out: the folder of the page and of `plots/`; by default `RUN/report/index.html` and `RUN/plots/`.

    Returns:
        "report" and "plots", the paths written.

    Raises:
        UsageError: there is no run.
        StorageError: a file of the run is damaged, or the disk cannot be written.
    """
    files = read_run(run)
    plots = figures(files)
    page = Path(out) if out is not None else files.path / "report"
    folder = (Path(out) if out is not None else files.path) / "plots"
    for name, svg in plots.items():
        storage.write_text(folder / name, svg)
    storage.write_text(page / "index.html", render(files, plots))
    return {"report": page / "index.html", "plots": [folder / name for name in plots]}


def figures(files: RunFiles) -> dict[str, str]:
    """Return the figures of a run by file name, as SVG; none before the first step."""
    if not any("loss" in event for event in files.events):
        return {}
    drawn = {
        "loss.svg": loss_curve(files.events, files.metrics.get("best_step")),
        "learning_rate.svg": learning_rate_curve(files.events),
    }
    return drawn if not files.recall else {"recall.svg": recall_curve(files.recall)} | drawn


def render(files: RunFiles, plots: Mapping[str, str]) -> str:
    """Return the page as HTML."""
    loader = jinja2.PackageLoader("budwood.reports", "")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    filters: dict[str, Any] = {"shown": shown, "labelled": labelled, "picture": _picture}
    environment.filters.update(filters)
    return environment.get_template(PAGE).render(
        run=files,
        title=files.path.resolve().name,
        command=reproduction(files),
        loss=losses(files),
        plots=plots,
        answers=files.answers[:SAMPLES],
        shortfall=shortfall(files.metrics),
        learned=learned(files.recall),
        forgotten_rule=FORGOTTEN,
        strips=strips(files.weights),
        settings=groups(files.recipe),
        data=counts(files.metrics.get("rows") or {}),
    )


def reproduction(files: RunFiles) -> str:
    """Return the command that makes the run again, or nothing where the run has no recipe."""
    if not files.recipe:
        return ""
    return shlex.join(["budwood", "adapt", "--recipe", str(files.path / "recipe.yaml"), "-o", f"{files.path}-again"])


def losses(files: RunFiles) -> dict[str, Any]:
    """Return the evaluation loss of the base and of the adapter that was kept, in nats a token."""
    evaluated = [event for event in files.events if event.get("eval_loss") is not None]
    at_start = next((event["eval_loss"] for event in evaluated if event.get("step") == 0), None)
    before = files.metrics.get("base_evaluation_loss", at_start)
    after = files.metrics.get("best_evaluation_loss") or min((e["eval_loss"] for e in evaluated), default=None)
    return {"before": before, "after": after}


def _picture(svg: str) -> str:
    """Return a figure as the address of an image: inside an image an SVG can neither run scripts nor fetch."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")
