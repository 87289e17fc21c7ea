"""Text to windows: whole, of one length, some held out, by seed."""

from __future__ import annotations

import json

import pytest

from budwood.compression.calibration import read_calibration
from budwood.compression.settings import Compression
from budwood.data.render import UNTRAINED
from budwood.errors import DataError, UsageError
from tests import tiny


def text(tmp_path, words: int = 400):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"w{i}" for i in range(words)), encoding="utf-8")
    return path


def test_windows_are_the_text_without_gap_or_overlap(tmp_path):
    path = text(tmp_path)
    found = read_calibration([path], tiny.tokenizer(), Compression(bits=4, samples=1000, length=32))
    both = [*found.windows.tolist(), *found.held_out.tolist()]
    written = tiny.tokenizer().decode([token for window in both for token in window])
    whole = path.read_text(encoding="utf-8")
    assert whole.startswith(written) and len(whole) - len(written) < 32
    assert len(found.held_out) == len(both) // 2  # the text is too short for 4,096 tokens


def test_enough_is_held_out_to_measure_on(tmp_path):
    for words, length in ((4000, 32), (4000, 256), (60_000, 256)):
        found = read_calibration([text(tmp_path, words)], tiny.tokenizer(), Compression(bits=4, length=length))
        told = found.to_dict()
        assert told["held_out_tokens"] == told["held_out"] * (length - 1) >= 4096 - 4096 / length
        assert told["held_out_tokens"] == sum(row.supervised for row in found.encoded())


def test_the_seed_chooses_the_windows(tmp_path):
    def drawn(seed):
        settings = Compression(bits=4, samples=5, length=32, seed=seed)
        return read_calibration([text(tmp_path)], tiny.tokenizer(), settings).windows.tolist()

    assert drawn(0) == drawn(0) != drawn(1)
    assert len(drawn(0)) == 5 and sorted(map(str, drawn(0))) != sorted(map(str, drawn(1)))


def test_each_window_begins_as_the_tokenizer_begins_and_that_is_not_measured(tmp_path):
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<|im_start|>"})
    tokenizer.backend_tokenizer.post_processor = _beginning(tokenizer.bos_token_id)
    found = read_calibration([text(tmp_path)], tokenizer, Compression(bits=4, length=32))
    assert set(found.windows[:, 0].tolist()) == {tokenizer.bos_token_id}
    assert (found.windows[:, 1:] != tokenizer.bos_token_id).all()
    row = found.encoded()[0]
    assert row.labels[0] == UNTRAINED and row.labels[1:] == row.input_ids[1:] and row.supervised == 31


def _beginning(bos: int):
    from tokenizers.processors import TemplateProcessing

    return TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", bos)])


def test_rows_and_markdown_are_read_too(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"The {i}th sentence is here."}) + "\n" for i in range(20)))
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nSome words that stand below it.\n")
    found = read_calibration([rows, page], tiny.tokenizer(), Compression(bits=4, length=32))
    told = found.to_dict()
    assert told["files"] == ["rows.jsonl", "page.md"] and len(told["digest"]) == 64
    assert told["tokens"] == told["windows"] * 32


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"length": 4}, UsageError, "8 to 256 tokens"),
        ({"length": 512}, UsageError, "8 to 256 tokens"),
        ({"length": 200}, DataError, "at least 400: a window of 200 to calibrate on"),
    ],
)
def test_too_little_text_and_windows_that_cannot_be(tmp_path, settings, error, told):
    with pytest.raises(error) as raised:
        read_calibration([text(tmp_path, 50)], tiny.tokenizer(), Compression(bits=4, **settings), longest=256)
    assert told in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_calibration([tmp_path / "none.txt"], tiny.tokenizer(), Compression(bits=4))
