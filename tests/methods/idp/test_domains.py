"""Text into domains: what is trained on, what is held out, and what is refused."""

from __future__ import annotations

import pytest

from budwood.data.documents import read_documents
from budwood.data.offsets import OffsetTokens
from budwood.data.settings import DataSettings
from budwood.errors import ConfigError, DataError
from budwood.methods.idp.domains import Division, divide
from budwood.methods.idp.settings import BankSettings
from tests import tiny
from tests.methods.idp import texts


def division(files, *, data: DataSettings | None = None, **settings) -> Division:
    found = read_documents(files).documents
    tokens = OffsetTokens(tiny.tokenizer())
    chosen = BankSettings(**({"window": 64} | settings))
    return divide(found, tokens, chosen, data or DataSettings(), seed=0)


def text_of(rows) -> str:
    return " ".join(tiny.tokenizer().decode(row.input_ids) for row in rows)


def test_each_file_is_a_domain_and_its_end_is_held_out(tmp_path):
    files = texts.write(tmp_path)
    found = division(files)
    assert [one.name for one in found.domains] == ["sea", "law", "food"]
    for one, file in zip(found.domains, files, strict=True):
        assert (len(one.train), len(one.held_out)) == (36, 4)
        whole = file.read_text(encoding="utf-8")
        assert whole.rstrip().endswith(tiny.tokenizer().decode(one.held_out[-1].input_ids))
        assert not {tuple(row.input_ids) for row in one.train} & {tuple(row.input_ids) for row in one.held_out}
    report = found.report.to_dict()
    assert (report["train_rows"], report["evaluation_rows"], report["kept"]) == (108, 12, 120)


def test_one_file_is_divided_by_its_words(tmp_path):
    parts = [path.read_text(encoding="utf-8") for path in texts.write(tmp_path)]
    (tmp_path / "all.txt").write_text("\n\n".join(parts), encoding="utf-8")
    found = division([tmp_path / "all.txt"])
    assert [one.name for one in found.domains] == ["cluster-1", "cluster-2", "cluster-3"]
    assert {len(one.train) for one in found.domains} == {36} and all(one.words for one in found.domains)
    seen = {word: [word in text_of(one.train) for one in found.domains] for word in ("sailor", "lawyer", "oven")}
    assert sorted(sum(places) for places in seen.values()) == [1, 1, 1]


def test_little_text_makes_fewer_clusters_unless_their_number_is_asked_for(tmp_path):
    files = texts.write(tmp_path, sentences=7, kinds=["sea"])
    assert len(division(files).domains) == 1
    with pytest.raises(DataError, match="windows") as caught:
        division(files, prompts=3)
    assert "learner.prompts" in caught.value.action


def test_too_little_text_is_an_error(tmp_path):
    with pytest.raises(DataError, match="makes 3 windows"):
        division(texts.write(tmp_path, sentences=3, kinds=["sea"]))


def test_files_of_one_name_get_names_of_their_own(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    first = texts.write(tmp_path / "a", kinds=["sea"])[0]
    second = texts.write(tmp_path / "b", kinds=["law"])[0].rename(tmp_path / "b" / "sea.txt")
    assert [one.name for one in division([first, second]).domains] == ["sea", "sea-2"]


def test_wrong_counts_are_refused(tmp_path):
    files = texts.write(tmp_path)
    with pytest.raises(ConfigError, match="2 numbers for 3 prompts"):
        division(files, lengths=(4, 8))
    with pytest.raises(ConfigError, match="there are 3 files"):
        division(files, divide="files", prompts=2)


def test_nothing_is_held_out_where_nothing_is_asked_for(tmp_path):
    found = division(texts.write(tmp_path), data=DataSettings(evaluation_fraction=0.0))
    assert [len(one.held_out) for one in found.domains] == [0, 0, 0]


def test_the_mixture_takes_turns(tmp_path):
    found = division(texts.write(tmp_path))
    first = [row.origin.file.rsplit("/", 1)[1] for row in found.mixture()[0][:6]]
    assert first == ["sea.txt", "law.txt", "food.txt"] * 2
