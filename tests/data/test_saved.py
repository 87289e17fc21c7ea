import datasets
import pytest

from budwood.data.files import read_records
from budwood.data.rows import read_rows
from budwood.errors import DataError

ROWS = [{"prompt": "a", "completion": "b"}, {"prompt": "é", "completion": "日"}]


def saved(rows):
    return datasets.Dataset.from_list(rows)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Make a hub dataset as the `datasets` library leaves it in its cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def make(name: str, config: str = "default", **splits):
        owner, title = name.split("/")
        folder = tmp_path / "cache" / f"{owner}___{title}" / config / "0.0.0" / "abc"
        folder.mkdir(parents=True)
        found = {}
        for split, rows in splits.items():
            made = saved(rows)
            made.to_parquet(tmp_path / "unused.parquet")
            with datasets.arrow_writer.ArrowWriter(
                path=str(folder / f"{title}-{split}.arrow"), features=made.features
            ) as writer:
                writer.write_table(made.data.table)
                writer.finalize()
            found[split] = datasets.splits.SplitInfo(name=split, num_examples=len(rows), dataset_name=title)
        info = datasets.DatasetInfo(
            features=made.features, config_name=config, dataset_name=title, splits=datasets.splits.SplitDict(found)
        )
        info.write_to_directory(str(folder))

    return make


def failing(path) -> DataError:
    with pytest.raises(DataError) as caught:
        list(read_records(path))
    return caught.value


def test_a_saved_dataset_is_rows_with_numbers(tmp_path):
    saved(ROWS).save_to_disk(tmp_path / "d")
    found = list(read_records(tmp_path / "d"))
    assert [record.values for record in found] == ROWS
    assert [str(record.origin) for record in found] == [f"{tmp_path}/d, row 1", f"{tmp_path}/d, row 2"]
    assert [row.references[0] for row in read_rows(tmp_path / "d")] == ["b", "日"]


def test_conversations_come_through_as_lists_of_objects(tmp_path):
    talk = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    saved([{"conversations": talk}]).save_to_disk(tmp_path / "d")
    (row,) = read_rows(tmp_path / "d")
    assert row.shape == "sharegpt" and row.references == ("b",)


def test_of_several_splits_train_is_read_and_the_others_by_their_folder(tmp_path):
    splits = datasets.DatasetDict({"test": saved(ROWS[1:]), "train": saved(ROWS[:1])})
    splits.save_to_disk(tmp_path / "d")
    assert [record.values for record in read_records(tmp_path / "d")] == ROWS[:1]
    assert [record.values for record in read_records(tmp_path / "d" / "test")] == ROWS[1:]
    datasets.DatasetDict({"only": saved(ROWS)}).save_to_disk(tmp_path / "e")
    assert len(list(read_records(tmp_path / "e"))) == 2


def test_splits_without_train_are_listed(tmp_path):
    datasets.DatasetDict({"a": saved(ROWS), "b": saved(ROWS)}).save_to_disk(tmp_path / "d")
    error = failing(tmp_path / "d")
    assert "a, b" in error.got and f"{tmp_path}/d/SPLIT" in error.action


def test_a_damaged_or_an_empty_dataset_is_a_data_error(tmp_path):
    saved(ROWS).save_to_disk(tmp_path / "d")
    (tmp_path / "d" / "data-00000-of-00001.arrow").write_bytes(b"rubbish")
    assert str(tmp_path / "d") in failing(tmp_path / "d").got
    saved(ROWS).select([]).save_to_disk(tmp_path / "e")
    assert "is empty" in failing(tmp_path / "e").got


def test_another_folder_is_refused_with_what_would_do(tmp_path):
    assert "save_to_disk" in failing(tmp_path).wanted


def test_a_hub_dataset_is_read_from_the_cache(cache):
    cache("owner/name", train=ROWS[:1], test=ROWS[1:])
    assert [record.values for record in read_records("owner/name")] == ROWS[:1]
    (held,) = read_records("owner/name:test")
    assert held.values == ROWS[1] and str(held.origin) == "owner/name:test, row 1"
    assert "no split 'dev'" in failing("owner/name:dev").got


def test_what_is_not_in_the_cache_is_an_error_that_says_how_to_get_it(cache, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.socket.connect", refuse)
    error = failing("owner/missing")
    assert "no such file" in error.got and 'load_dataset("owner/missing")' in error.action
    assert "configurations" not in error.got


def test_several_configurations_in_the_cache_are_refused(cache):
    cache("owner/name", "red", train=ROWS)
    cache("owner/name", "blue", train=ROWS)
    assert "multiple" in failing("owner/name").got


@pytest.mark.parametrize("path", ["data/rows.jsonl", "data/rows.csv", "/data/rows", "a/b/c", "rows"])
def test_a_missing_file_is_not_taken_for_a_hub_dataset(path):
    error = failing(path)
    assert "no such file" in error.got and "load_dataset" not in error.action
