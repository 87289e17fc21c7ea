"""What a run from documents writes about itself: what it looked at, what it learned, what it forgot.

    RUN/documents/weights.json    each document with the weights of its characters
    RUN/documents/recall.json     each probe before and after, and the learn/keep curve

Reports draw from these files; they hold the text of the documents and stay in the run, which is not what is published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from budwood import storage
from budwood.data.documents import Document, Window
from budwood.data.offsets import NOWHERE
from budwood.data.probes import Probe
from budwood.evals.curves import CurvePoint, learn_at_keep, nll_at_keep, total_knowledge
from budwood.evals.recall import ProbeScore, Recall
from budwood.methods.taalm.examination import JUDGED_BY, Examination

FOLDER = "documents"
RECALL = f"{FOLDER}/recall.json"  # in the folder of a run


def write_weights(run: Path, documents: Sequence[Document], windows: Sequence[Window], origin: str) -> None:
    """Write each document's text and its weights, as [start, stop, weight] of characters."""
    spans: dict[Document, list[list[float]]] = {document: [] for document in documents}
    for window in windows:
        for (start, stop), weight in zip(window.spans, window.encoded.loss_weights, strict=True):
            if (start, stop) != NOWHERE:
                spans[window.document].append([start, stop, round(weight, 4)])
    rows = [
        {"file": str(document.origin), "title": document.title, "text": document.text, "weights": spans[document]}
        for document in documents
    ]
    # One document a line: a number a line would make a book's file many times longer.
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    storage.write_text(
        run / FOLDER / "weights.json", f'{{"origin": {json.dumps(origin)}, "documents": [\n{text}\n]}}\n'
    )


def write_recall(
    run: Path, examination: Examination, after: Mapping[str, Recall], events: Sequence[Mapping[str, Any]], step: int
) -> dict[str, Any]:
    """Write what became of each probe, and return the figures that metrics.json keeps.

    Args:
        after: the scores of the published adapter.
        events: of the run.
        step: the one that is published.
    """
    curve = examination.curve(events)
    figures = summary(examination, curve, next(one for one in events if one["step"] == step and JUDGED_BY in one))
    probes = {
        name: [_record(*each) for each in zip(asked, examination.before[name].scores, after[name].scores, strict=True)]
        for name, asked in examination.probes.items()
    }
    points = [asdict(point) for point in curve]
    storage.write_json(run / RECALL, figures | {"probes": probes, "curve": points})
    return figures


def summary(examination: Examination, curve: Sequence[CurvePoint], best: Mapping[str, Any]) -> dict[str, Any]:
    """Return the means of each kind before and after, the epoch that is published, and the paper's rule beside it."""
    kinds = {
        name: {"before": examination.before[name].to_dict(), "after": told}
        for name, told in examination.told(best).items()
    }
    return {
        **kinds,
        "learned_by": examination.learned,
        "keep_wanted": examination.keep,
        "best_epoch": best["epoch"],
        "kept_enough": learn_at_keep(curve[1:], examination.keep) is not None,
        "nll_at_keep": nll_at_keep(curve, examination.keep),
        "paper": total_knowledge(curve).to_dict(),
    }


def _record(probe: Probe, before: ProbeScore, after: ProbeScore) -> dict[str, Any]:
    return {
        "text": probe.text,
        "target": list(probe.target),
        "prompt": probe.prompt.strip(),
        "answer": probe.answer,
        "before": before.accuracy,
        "after": after.accuracy,
        "nll_before": before.nll,
        "nll_after": after.nll,
    }
