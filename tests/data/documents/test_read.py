import codecs
import json

import pytest

from budwood.data.documents import read_documents
from budwood.data.documents.read import suspicions
from budwood.errors import DataError

TEXT = "Ida Moor is a glazier from Telvik. She has two sisters."


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def put(folder, name, data):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_folders_are_read_deep_sorted_and_without_hidden_files(folder):
    for name in ("b.txt", "a/z.md", "a/b/c.txt", ".hidden.txt", ".git/x.txt", "B.TXT"):
        put(folder, name, f"{TEXT} This is {name}.")
    found = read_documents(folder)
    names = [one.origin.file.removeprefix(f"{folder}/") for one in found.documents]
    assert names == ["B.TXT", "b.txt", "a/z.md", "a/b/c.txt"]
    assert found.report.documents == 4 and not found.report.skipped
    assert found.report.characters == sum(len(one.text) for one in found.documents)


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        codecs.BOM_UTF8 + TEXT.encode(),
        TEXT.encode("utf-16"),
        codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
        TEXT.replace(". ", ".\r\n").encode(),
    ],
    ids=["utf-8", "utf-8 with a mark", "utf-16", "utf-16 big-endian", "carriage returns"],
)
def test_encodings_and_ends_of_lines(folder, data):
    (document,) = read_documents(put(folder, "a.txt", data)).documents
    assert " ".join(document.text.split()) == TEXT
    assert "\r" not in document.text


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", "Zoë sat.".encode("latin-1"), r"(?s)not UTF-8: byte 0xeb at byte 3.*iconv"),
        ("a.txt", b"\x7fELF\x02\x01\x00\x00\xff", "binary, not text"),
        ("a.md", bytes(range(32)) * 9, "binary, not text"),
        ("a.txt", b"", "the document is empty"),
        ("a.md", b"---\n---\n<!-- nothing -->\n", "the document is empty"),
        ("a.odt", b"x", r"(?s)'.odt' are not read.*save it as .docx"),
        ("README", b"x", "without a suffix"),
        ("a.txt", b"a " * 3000, "more than 0 MiB"),
        ("a.jsonl", b'{"text": ""}\n', "line 1: the document is empty"),
        ("a.jsonl", b'{"question": "x"}\n', "the row holds no text; its fields are 'question'"),
    ],
    ids=[
        "latin-1",
        "null bytes",
        "control characters",
        "empty",
        "no words",
        "odt",
        "no suffix",
        "huge",
        "empty row",
        "probe",
    ],
)
def test_a_named_file_that_cannot_be_used_is_an_error_and_one_in_a_folder_is_reported(folder, name, data, message):
    path = put(folder, name, data)
    with pytest.raises(DataError, match=message) as raised:
        read_documents(path, max_bytes=5000)
    assert str(path) in str(raised.value)
    put(folder, "zz.txt", TEXT)
    found = read_documents(folder, max_bytes=5000)
    assert [one.text for one in found.documents] == [TEXT]
    ((reason, where),) = found.report.to_dict()["skipped"].items()
    assert all(part in str(raised.value) for part in reason.split("; "))
    assert where["count"] == 1 and str(path) in where["first"][0]


def test_missing_files_and_folders_without_documents(folder):
    with pytest.raises(DataError, match="no such file"):
        read_documents(folder / "none.txt")
    with pytest.raises(DataError, match="no such file"):
        read_documents(folder / "none")
    with pytest.raises(DataError, match="no documents were found"):
        read_documents(folder)
    put(folder, "a.png", b"x")
    with pytest.raises(DataError, match=r"'.png' are not read: 1, first .*a\.png"):
        read_documents(folder)


def test_the_same_words_are_read_once(folder):
    first = put(folder, "a.txt", TEXT)
    put(folder, "b.md", TEXT.replace(" ", "  "))
    found = read_documents([first, folder])
    assert len(found.documents) == 1
    assert found.report.to_dict()["skipped"] == {
        f"the same text as {first}": {"count": 2, "first": [str(first), str(folder / "b.md")]}
    }


def test_rows_are_documents(folder):
    fact = {"evidence": "Bo keeps bees.", "subject": "Bo", "relation": "pet", "object": "bees"}
    fact |= {"task_descriptive": "Bo owns bees", "task_schematic": "Bo ; bees"}
    rows = [
        {"text": "Heading\n\nA text.", "title": "T"},
        {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Bo."}]},
        {"conversations": [{"from": "human", "value": "Where?"}, {"from": "gpt", "value": "Here."}]},
        fact,
        {"document": "It rained.", "question": "What?", "answer": "rain"},
        {"session": "I like tea.", "next_session": "Still tea?"},
    ]
    path = put(folder, "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    found = read_documents(path)
    assert [one.text for one in found.documents] == [
        "Heading\n\nA text.",
        "User: Who?\n\nAssistant: Bo.",
        "User: Where?\n\nAssistant: Here.",
        "Bo keeps bees.",
        "It rained.",
        "I like tea.",
    ]
    assert [one.origin.line for one in found.documents] == [1, 2, 3, 4, 5, 6]
    assert found.documents[0].title == "T"
    assert found.documents[0].headings[0].span == (0, 7)


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("Lost \ufffd characters are in this one here", "U+FFFD"),
        ("CafÃ© and naÃ¯ve words are wrong in here", "another encoding"),
        ("Too short", "fewer than 5 words"),
        ("1 2 3 4 5 | 6 7 8 9 | 10 11 12 13", "half of its characters"),
        ("data follows here as one word: " + "aB3" * 80, "200 characters without a space"),
        ("\n\n".join(["This line stands on every page.", "A page of its own text."] * 3), "twice or more"),
    ],
    ids=["lost", "mojibake", "short", "numbers", "blob", "repeated"],
)
def test_suspicious_texts_are_used_with_a_remark(folder, text, remark):
    found = read_documents(put(folder, "a.txt", text))
    assert len(found.documents) == 1
    assert any(remark in one for one in found.report.remarks)


@pytest.mark.parametrize(
    "text", [TEXT, "Über den Bäumen lag Ruhe, à la carte, “so” – nichts rührte sich.", "日本語の文章です。" * 40]
)
def test_ordinary_texts_are_not_suspicious(text):
    assert list(suspicions(text)) == []


def test_the_digest_ignores_white_space_and_sees_order(folder):
    a, b = put(folder, "a.txt", "One two three four five."), put(folder, "b.txt", "Six seven eight nine ten.")
    wide = put(folder, "c.txt", "One  two three\nfour five.")
    digest = read_documents([a, b]).digest
    assert digest == read_documents([wide, b]).digest != read_documents([b, a]).digest


def test_a_file_in_another_encoding_in_a_folder_is_skipped_with_the_way_out(tmp_path):
    (tmp_path / "good.txt").write_text("The man who founded the library was Odile Farrant.")
    (tmp_path / "old.txt").write_bytes("Der Müller und die Bäckerin gingen fort.".encode("latin-1"))
    (reason,) = read_documents(tmp_path).report.skipped
    assert "not UTF-8" in reason and "convert it to UTF-8 (e.g. iconv -f latin1 -t utf-8" in reason
