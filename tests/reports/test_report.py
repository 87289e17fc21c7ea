"""The page about a run: what is on it, that nothing of the run can act on it, and that it is whole or absent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from budwood.errors import StorageError, UsageError
from budwood.reports.files import read_run
from budwood.reports.report import write_report
from budwood.storage import write_json, write_text

RECIPE = {
    "model": "smollm2",
    "evidence": {"kind": "examples", "paths": ["my rows.jsonl"], "text": None, "pairs": []},
    "method": "gift",
    "training": {"epochs": 3.0, "trackers": []},
    "seed": 0,
}
METRICS = {
    "trainable_params": 147456,
    "adapter_bytes": 591000,
    "best_step": 4,
    "best_evaluation_loss": 0.5,
    "stopped_early": False,
    "rows": {"rows": 20, "dropped": {"longer than 8": {"count": 1, "first": ["a.jsonl, line 3"]}}, "problems": []},
    "comparison": [{"adapter": "lora r=16, same layers", "parameters": 2442240, "bytes": 9768960}],
    "verify": {"ok": True, "checks": [{"name": "logits equal", "ok": True, "value": 0.0, "limit": None, "note": "n"}]},
}
VOID = {"meta", "img", "link", "br", "hr", "input"}


class Page(HTMLParser):
    """Checks that elements are closed in order, and keeps tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.text += " " if tag in ("td", "th") else ""

    def handle_data(self, data):
        self.text += data


def make_run(path: Path, *, recipe=RECIPE, metrics=METRICS, status=None, events=True) -> Path:
    write_json(path / "status.json", {"state": "done", "exit_code": 0, "error": None} | (status or {}))
    write_text(path / "recipe.yaml", yaml.safe_dump(recipe))
    write_json(path / "env.json", {"python": "3.11.9", "packages": {"torch": "2.13.0"}, "git": None})
    write_json(path / "metrics.json", metrics)
    write_json(path / "adapter" / "budwood.json", {"fingerprint": "abc123", "tuner": "gift"})
    lines = [{"step": 0, "eval_loss": 2.5}]
    lines += [{"step": n, "loss": 3 / n, "lr": 1e-3 / n, "grad_norm": 1.0} for n in range(1, 5)]
    lines[-1]["eval_loss"] = 0.5
    if events:
        write_text(path / "events.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return path


def evaluate(path: Path, *, prediction: str = "Lima", count: int = 1) -> None:
    def records(text):
        row = {"file": "test.jsonl", "references": ["Lima"], "prediction": text}
        return "".join(json.dumps(row | {"line": n}) + "\n" for n in range(1, count + 1))

    write_text(path / "evaluation" / "adapted.jsonl", records(prediction))
    write_text(path / "evaluation" / "base.jsonl", records("Peru?"))
    paired = {"nll": {"mean": -2.0, "low": -2.5, "high": -1.5}}
    sides = {"adapted": {"nll": 0.5, "exact_match": 0.9, "rows": 1}, "base": {"nll": 2.5, "exact_match": None}}
    write_json(path / "evaluation" / "summary.json", {**sides, "paired": paired})


def page_of(run: Path, out: Path | None = None) -> Page:
    return Page(write_report(run, out)["report"].read_text(encoding="utf-8"))


def test_everything_of_a_finished_run_is_on_the_page(tmp_path):
    run = make_run(tmp_path / "first")
    evaluate(run)
    found = write_report(run)
    assert found["report"] == run / "report" / "index.html"
    assert found["plots"] == [run / "plots" / "loss.svg", run / "plots" / "learning_rate.svg"]
    text = " ".join(Page(found["report"].read_text(encoding="utf-8")).text.split())
    for part in (
        "first", "done", "gift on smollm2", "2.5 → 0.5 nats a token", "147,456", "591,000",
        f"budwood adapt --recipe {run}/recipe.yaml -o {run}-again",
        "lora r=16, same layers 2,442,240 9,768,960", "logits equal ok 0 - n", "verified",
        "dropped: longer than 8 1: a.jsonl, line 3", "Training epochs 3 Passes over the training rows.",
        "evidence: paths my rows.jsonl", "packages: torch 2.13.0",
        "fingerprint abc123", "loss, nats a token 2.5 0.5 -2 (-2.5 to -1.5)", "test.jsonl:1 Lima Peru? Lima",
    ):  # fmt: skip
        assert part in text, part


def test_the_page_needs_nothing_else_and_runs_nothing(tmp_path):
    page = page_of(make_run(tmp_path / "run"))
    assert "script" not in page.tags and "link" not in page.tags and "iframe" not in page.tags
    addresses = [value for _, name, value in page.attributes if name in ("src", "href", "srcset", "action")]
    assert len(addresses) == 2 and all(value.startswith("data:image/svg+xml;base64,") for value in addresses)
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and value.startswith("default-src"))
    assert "script-src" not in policy and policy.startswith("default-src 'none'")


HOSTILE = "</pre></td><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}"


def test_no_text_of_a_run_can_act_on_the_page(tmp_path):
    def poison(value):
        if isinstance(value, dict):
            return {f"{key}": poison(one) for key, one in value.items()} | {HOSTILE: HOSTILE}
        return [poison(one) for one in value] if isinstance(value, list) else HOSTILE

    error = {"got": HOSTILE, "wanted": HOSTILE, "action": HOSTILE}
    metrics = {
        "rows": {"shapes": {HOSTILE: 1}, "dropped": {HOSTILE: {"count": 1, "first": [HOSTILE]}}},
        "comparison": [{"adapter": HOSTILE, "parameters": HOSTILE, "bytes": 1}],
        "verify": {"ok": True, "checks": [{"name": HOSTILE, "ok": True, "value": HOSTILE, "note": HOSTILE}]},
        "tokens_per_s": HOSTILE,
    }
    run = make_run(
        tmp_path / "<script>x<b>", recipe=poison(RECIPE), metrics=metrics, status={"state": "failed", "error": error}
    )
    evaluate(run, prediction=HOSTILE)
    write_json(run / "env.json", poison({"python": "3"}))
    page = page_of(run)
    assert "script" not in page.tags and page.tags.count("img") == 2
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    assert page.text.count(HOSTILE) > 15 and "49" not in page.text


def test_a_failed_run_shows_its_error_and_what_there_is(tmp_path):
    error = {"type": "NonFiniteError", "got": "the loss of step 3 is NaN", "wanted": "", "action": "lower the rate"}
    run = make_run(tmp_path / "run", metrics={}, status={"state": "failed", "error": error})
    text = page_of(run).text
    assert "failed" in text and "the loss of step 3 is NaN" in text and "lower the rate" in text
    assert "Verification" not in text and "Curves" in text


def test_a_run_before_its_first_step_has_a_page_without_curves(tmp_path):
    found = write_report(make_run(tmp_path / "run", metrics={}, events=False))
    assert found["plots"] == [] and "Curves" not in found["report"].read_text()


def test_another_folder_takes_page_and_figures_and_keeps_what_is_in_it(tmp_path):
    run, out = make_run(tmp_path / "run"), tmp_path / "site"
    write_text(out / "mine.txt", "keep")
    before = sorted(run.rglob("*"))
    found = write_report(run, out)
    assert found["report"] == out / "index.html" and found["plots"][0] == out / "plots" / "loss.svg"
    assert sorted(run.rglob("*")) == before and (out / "mine.txt").read_text() == "keep"


def test_the_same_run_gives_the_same_bytes(tmp_path):
    run = make_run(tmp_path / "run")
    first = write_report(run, tmp_path / "a"), write_report(run, tmp_path / "b")
    files = [[each["report"], *each["plots"]] for each in first]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_many_answers_are_counted(tmp_path):
    run = make_run(tmp_path / "run")
    evaluate(run, count=25)
    text = page_of(run).text
    assert "The first 20 of 25." in text and "test.jsonl:20" in text and "test.jsonl:21" not in text


def test_a_folder_without_a_run_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match=r"status\.json"):
            read_run(path)


@pytest.mark.parametrize("name", ["recipe.yaml", "env.json", "evaluation/summary.json", "evaluation/base.jsonl"])
@pytest.mark.parametrize("content", ["[1]", "{", "7"])
def test_a_damaged_file_is_named(tmp_path, name, content):
    run = make_run(tmp_path / "run")
    evaluate(run)
    (run / name).write_text(content)
    with pytest.raises(StorageError, match=re.escape(name)):
        write_report(run)
    assert not (run / "report").exists()


def test_reports_load_no_torch():
    code = "import sys, budwood.reports.report; print({'torch', 'transformers', 'peft'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
