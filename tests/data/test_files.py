import codecs
import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from budwood.data.files import read_records, scan_records
from budwood.data.problems import LocatedError
from budwood.errors import DataError

ROWS = [{"prompt": 'a, "b"\nc', "completion": "é 日本"}, {"prompt": "", "completion": "2"}]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def failing(path) -> LocatedError:
    with pytest.raises(DataError) as caught:
        list(read_records(path))
    return caught.value


def as_lines(rows):
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


def test_every_format_reads_the_same_rows(tmp_path):
    paths = [
        write(tmp_path / "a.jsonl", as_lines(ROWS)),
        write(tmp_path / "a.ndjson", as_lines(ROWS) + "\n"),
        write(tmp_path / "a.json", json.dumps(ROWS)),
        write(tmp_path / "b.json", json.dumps({"version": 1, "rows": ROWS}, indent=2)),
        tmp_path / "A.PARQUET",
    ]
    pq.write_table(pa.Table.from_pylist(ROWS), paths[-1])
    for suffix, delimiter in ((".csv", ","), (".tsv", "\t")):
        paths.append(tmp_path / f"a{suffix}")
        with paths[-1].open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["prompt", "completion"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(ROWS)
    for path in paths:
        assert [record.values for record in read_records(path)] == ROWS, path
        assert {record.origin.file for record in read_records(path)} == {str(path)}


def test_lines_count_from_one_and_blank_ones_count_too(tmp_path):
    path = write(tmp_path / "a.jsonl", '\n{"a": 1}\n\n  \n{"a": 2}\r\n\n')
    assert [(record.origin.line, record.values["a"]) for record in read_records(path)] == [(2, 1), (5, 2)]


def test_a_csv_row_is_where_it_starts(tmp_path):
    path = write(tmp_path / "a.csv", 'a,b\n"one\ntwo",1\n\n3,4\n')
    assert [record.origin.line for record in read_records(path)] == [2, 5]


def test_json_and_parquet_count_rows(tmp_path):
    path = write(tmp_path / "a.json", json.dumps(ROWS))
    origins = [record.origin for record in read_records(path)]
    assert [origin.line for origin in origins] == [1, 2]
    assert str(origins[1]).endswith("a.json, row 2")


def test_only_line_feeds_divide_lines(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"a": "x\u2028y\u0085z"}\n')
    assert [record.values["a"] for record in read_records(path)] == ["x\u2028y\u0085z"]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".json"])
def test_a_byte_order_mark_is_no_text(tmp_path, suffix):
    content = {".jsonl": '{"a": "1"}', ".csv": "a\n1\n", ".json": '[{"a": "1"}]'}[suffix]
    path = write(tmp_path / f"a{suffix}", codecs.BOM_UTF8 + content.encode())
    assert [record.values for record in read_records(path)] == [{"a": "1"}]


def test_reading_is_lazy(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"a": 1}\n{broken\n')
    records = read_records(path)
    assert next(records).values == {"a": 1}
    with pytest.raises(DataError, match="line 2"):
        next(records)


def test_scanning_goes_on_after_a_bad_line(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"a": 1}\n{broken\n\xe9\n[]\n{"a": 2}\n')
    found = list(scan_records(path))
    assert [isinstance(one, LocatedError) for one in found] == [False, True, True, True, False]
    assert [one.origin.line for one in found] == [1, 2, 3, 4, 5]


def test_missing_file_and_folder_are_refused_at_once(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_records(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="folder"):
        read_records(tmp_path)


def test_an_unknown_suffix_names_the_nearest(tmp_path):
    with pytest.raises(DataError, match=r"did you mean '\.jsonl'"):
        read_records(write(tmp_path / "a.jsnl", "{}"))
    with pytest.raises(DataError, match="no suffix"):
        read_records(write(tmp_path / "rows", "{}"))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet"])
@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_rows(tmp_path, name, content):
    content = "" if name == "a.parquet" else content
    error = failing(write(tmp_path / name, content))
    assert "holds no rows" in str(error) and name in str(error) and "completion" in error.wanted


def test_a_header_alone_or_an_empty_list_is_no_row(tmp_path):
    assert "no rows" in failing(write(tmp_path / "a.csv", "prompt,completion\n")).problem
    assert "no rows" in failing(write(tmp_path / "a.json", "[]")).problem


@pytest.mark.parametrize(
    ("name", "content", "line", "says"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": }\n', 2, "not valid JSON"),
        ("a.jsonl", '{"a": 1}\n{"a": "cut off', 2, "not valid JSON"),
        ("a.jsonl", '{"a": 1}\n3\n', 2, "the number 3"),
        ("a.jsonl", '{"a": 1}\n["b"]\n', 2, "list ['b']"),
        ("a.jsonl", "[" * 100_000, 1, "cannot be read as JSON"),
        ("a.jsonl", '{"a": ' + "9" * 5000 + "}", 1, "cannot be read as JSON"),
        ("a.jsonl", b'{"a": 1}\n{"a": "caf\xe9"}\n', 2, "0xe9 at byte 11"),
        ("a.jsonl", '{"a": 1}'.encode("utf-16"), 0, "UTF-16"),
        ("a.jsonl", gzip.compress(b"{}", mtime=0), 0, "gzip"),
        ("a.jsonl", b"\x7fELF\0\0\x01\x02", 0, "binary"),
        ("a.json", "PAR1 and so on", 0, "Parquet"),
        ("a.csv", b"PK\x03\x04", 0, "spreadsheet"),
        ("a.json", "[{]", 0, "not valid JSON"),
        ("a.json", '[{"a": 1}, 2]', 2, "the number 2"),
        ("a.json", '{"a": 1}', 0, "0 lists"),
        ("a.json", '{"a": [], "b": []}', 0, "2 lists"),
        ("a.json", '"a"', 0, "holds the text"),
        ("a.csv", "a,b\n1,2,3\n", 2, "3 cells, the header 2"),
        ("a.csv", "a,b\n1\n", 2, "1 cells, the header 2"),
        ("a.csv", "a,,b\n1,2,3\n", 1, "header"),
        ("a.csv", "a,a\n1,2\n", 1, "header"),
        ("a.csv", 'a,b\n1,2\n"x"y,1\n', 3, "cannot be read"),
        ("a.csv", 'a,b\n"never closed,1\n', 2, "cannot be read"),
        ("a.csv", "a\n" + "x" * 200_000, 2, "field limit"),
        ("a.csv", b"a\nb\ncaf\xe9\n", 3, "UTF-8"),
        ("a.parquet", "garbage that is no Parquet", 0, "not sound Parquet"),
    ],
)
def test_what_is_wrong_names_file_and_line(tmp_path, name, content, line, says):
    error = failing(write(tmp_path / name, content))
    assert isinstance(error, LocatedError) and says in error.problem
    assert error.origin.file == str(tmp_path / name) and error.origin.line == line
    assert len(str(error)) < 1000
    assert error.located()["line"] == (line or None)


def test_a_list_in_a_jsonl_file_and_lines_in_a_json_file_are_told_apart(tmp_path):
    assert ".json" in failing(write(tmp_path / "a.jsonl", "[\n{}\n]")).action
    assert ".jsonl" in failing(write(tmp_path / "a.json", as_lines(ROWS))).action


def test_a_file_that_cannot_be_opened(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", "{}")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    assert "Permission denied" in failing(path).problem
