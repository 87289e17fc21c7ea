import json

import pytest

from budwood.data.problems import Origin
from budwood.errors import StorageError
from budwood.evals.results import (
    EvalResult,
    RowRecord,
    compare_results,
    means_of,
    task_means,
    write_records,
)


def record(line: int, tokens: int, nll: float, match: float | None, task: str | None = None) -> RowRecord:
    return RowRecord(Origin("r.jsonl", line), task, tokens, nll, match == 1.0, ("é",), "é", match, match)


def result(records: list[RowRecord]) -> EvalResult:
    return EvalResult(
        **means_of(records).to_dict(),
        records=tuple(records),
        by_task=task_means(records),
        dropped=0,
        generated=0,
        max_new_tokens=8,
        batch_size="auto",
        seconds=0.5,
    )


ADAPTED = [record(1, 1, 4.0, 1.0, "a"), record(2, 3, 0.0, 0.0, "b"), record(3, 4, 1.0, 1.0)]
BASE = [record(1, 1, 5.0, 0.0, "a"), record(2, 3, 2.0, 0.0, "b"), record(3, 4, 2.0, 1.0)]


def test_means_over_tokens_and_over_rows():
    means = means_of(ADAPTED)
    assert (means.rows, means.tokens, means.nll, means.row_nll) == (3, 8, 1.0, pytest.approx(5 / 3))
    assert means.exact_match == pytest.approx(2 / 3) == means.forced_exact


def test_tasks_without_a_name_have_no_means_of_their_own():
    assert list(task_means(ADAPTED)) == ["a", "b"]
    assert task_means(ADAPTED)["b"].nll == 0.0


def test_paired_differences():
    paired = compare_results(result(ADAPTED), result(BASE)).paired
    assert paired["nll"].mean == pytest.approx((-1 * 1 - 2 * 3 - 1 * 4) / 8)
    assert paired["nll"].high < 0 and paired["nll"].is_clear
    assert paired["exact_match"].mean == pytest.approx(1 / 3)


def test_dictionaries_are_json_without_records():
    comparison = compare_results(result(ADAPTED), result(BASE)).to_dict()
    text = json.loads(json.dumps(comparison, allow_nan=False))
    assert text == comparison
    assert "records" not in comparison["adapted"]
    assert comparison["adapted"]["by_task"]["a"]["nll"] == 4.0
    assert set(comparison["paired"]["nll"]) == {"mean", "low", "high"}


def test_records_are_written_one_a_line(tmp_path):
    write_records(result(ADAPTED), tmp_path / "deep" / "records.jsonl")
    lines = (tmp_path / "deep" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [one.to_dict() for one in ADAPTED]
    assert json.loads(lines[0])["file"] == "r.jsonl" and "é" in lines[0]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    path.write_text("old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("budwood.storage.os.replace", full)
    with pytest.raises(StorageError):
        write_records(result(ADAPTED), path)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["records.jsonl"]
