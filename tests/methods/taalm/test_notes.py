"""Documents made ready: questions are found beside them, and are not told as skipped."""

from __future__ import annotations

import pytest

from budwood.data.offsets import OffsetTokens
from budwood.errors import DataError
from budwood.methods.taalm.learner_settings import DocumentSettings
from budwood.methods.taalm.notes import read_notes
from tests import tiny
from tests.methods.taalm import notes as samples


def read(*paths, **settings):
    tokens = OffsetTokens(tiny.tokenizer())
    return read_notes(paths, tokens, DocumentSettings(**settings), max_length=1024, seed=0)


def test_questions_in_the_folder_are_used_and_others_in_their_place_if_named(tmp_path):
    folder = samples.write(tmp_path / "notes")
    found = read(folder)
    assert [probe.answer for probe in found.questions.other_words] == ["Odile Farrant", "900 crowns"]
    assert found.report.skipped == {} and found.rows.to_dict()["dropped"] == {}
    (tmp_path / "mine.jsonl").write_text('{"question": "When?", "answer": "2011"}\n')
    named = read(folder, probes=tmp_path / "mine.jsonl")
    assert [probe.answer for probe in named.questions.other_words] == ["2011"]
    assert named.report.skipped  # now nobody asks what is in the folder
    assert read(folder / "ships.md").questions.other_words == ()


def test_every_word_is_in_one_window_and_none_is_longer_than_it_may_be(tmp_path):
    found = read(samples.write(tmp_path / "notes"), window=32)
    assert max(len(window.encoded.input_ids) for window in found.windows) <= 32
    words = [word for window in found.windows for word in window.text.split()]
    assert words == [word for document in found.documents for word in document.text.split()]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.txt", b"", "empty"),
        ("binary.txt", b"\x00\x01\x02\x03" * 50, "binary"),
        ("latin.txt", "Der Müller und die Bäckerin".encode("latin-1"), "UTF-8"),
        ("program.exe", b"MZ", "not read"),
    ],
)
def test_documents_that_cannot_be_used_get_a_clear_word(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        read(tmp_path / name)
    folder = samples.write(tmp_path / "notes")
    (folder / name).write_bytes(content)
    assert any(said in reason for reason in read(folder).rows.to_dict()["dropped"])


def test_the_same_text_twice_is_learned_once(tmp_path):
    folder = samples.write(tmp_path / "notes")
    (folder / "again.txt").write_text(samples.TEXTS["people.txt"])
    found = read(folder)
    assert len(found.documents) == 2 and any("the same text as" in reason for reason in found.report.skipped)


def test_a_row_of_a_word_is_dropped_and_named(tmp_path):
    folder = samples.write(tmp_path / "notes")
    (folder / "letter.txt").write_text("x")
    found = read(folder)
    assert all(window.document.origin.file != str(folder / "letter.txt") for window in found.windows)
    dropped = found.rows.to_dict()["dropped"]["fewer than 5 tokens"]
    assert dropped["first"] == [str(folder / "letter.txt")]
    with pytest.raises(DataError, match="no document has 5 tokens"):
        read(folder / "letter.txt", probes=folder / "probes.jsonl")
