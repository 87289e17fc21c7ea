import json

import pytest

from budwood.data.render import Renderer
from budwood.data.settings import DataSettings
from budwood.data.show import check, show
from budwood.errors import DataError, UsageError
from tests import tiny
from tests.data.samples import BRACKETS, byte_tokenizer

RENDERER = Renderer(tiny.tokenizer())
GOOD = '{"prompt": "hi", "completion": "yo", "weight": 0.5}'


def test_a_shown_row_is_what_training_gets(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}\n")
    first, second = show(path, RENDERER)
    assert first.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>"
    assert first.answer == "yo<|im_end|>" and first.shape == "prompt/completion"
    assert [token for token, trained in zip(first.tokens, first.trained) if trained] == ["y", "o", "<|im_end|>"]
    assert first.loss_weights[-4:] == [0.0, 0.5, 0.5, 0.5] and first.ids[-1] == 256
    assert len(first.ids) == len(first.tokens) == len(first.trained) == len(first.loss_weights)
    assert json.loads(json.dumps(second.to_dict()))["origin"] == f"{path}, line 2"


def test_only_the_wanted_rows_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}\nbroken\n")
    assert [shown.origin.line for shown in show(path, RENDERER, range(1, 2))] == [2]
    with pytest.raises(DataError, match="line 3"):
        show(path, RENDERER, range(3))
    path.write_text(GOOD)
    with pytest.raises(UsageError, match="no row 4"):
        show(path, RENDERER, range(4, 5))


def test_checking_collects_every_problem_of_every_file(tmp_path):
    first, second, third = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    first.write_text(f'{GOOD}\nbroken\n{{"prompt": "a", "completion": ""}}\n{{"x": 1}}\n')
    third.write_text(GOOD)
    report = check([first, second, third], RENDERER, DataSettings())
    places = [(problem["file"], problem["line"], problem["field"]) for problem in report.to_dict()["problems"]]
    assert places == [
        (str(first), 2, None),
        (str(first), 3, "completion"),
        (str(first), 4, None),
        (str(second), None, None),
    ]
    assert (report.rows, report.kept, report.duplicates, report.problem_count) == (5, 2, 1, 4)
    assert report.tokens > 0 and json.dumps(report.to_dict())


def test_problems_beyond_the_limit_are_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("broken\n" * 50 + GOOD)
    report = check(path, None, DataSettings())
    assert (len(report.problems), report.problem_count, report.kept) == (20, 50, 1)


def test_what_is_not_counted_is_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(GOOD)
    without, with_tokens = (check(path, renderer, DataSettings()).to_dict() for renderer in (None, RENDERER))
    tokens = {"sequences", "tokens", "supervised_tokens", "length_tokens"}
    assert set(with_tokens) - set(without) == tokens and with_tokens["tokens"] > 0
    assert not {"train_rows", "evaluation_rows", "overlap"} & set(with_tokens)


def test_rows_that_the_template_refuses_are_problems(tmp_path):
    path = tmp_path / "a.jsonl"
    talk = [{"role": "assistant", "content": "a"}]
    path.write_text(json.dumps({"messages": talk}) + "\n" + GOOD)
    report = check(path, Renderer(byte_tokenizer(BRACKETS)), DataSettings())
    assert [(problem["line"], report.kept) for problem in report.to_dict()["problems"]] == [(1, 1)]
    assert not check(path, None, DataSettings()).problems


def test_dropping_every_row_is_a_problem(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(GOOD)
    report = check(path, RENDERER, DataSettings(max_length=5)).to_dict()
    (problem,) = report["problems"]
    assert "length_tokens" not in report and report["tokens"] == 0
    assert "every row is dropped" in problem["problem"] and "max_length" in problem["problem"]


def test_a_part_of_a_character_is_shown_by_its_name(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "completion": "é"}\n', encoding="utf-8")
    (shown,) = show(path, Renderer(tiny.tokenizer()), range(1))
    assert shown.answer == "é<|im_end|>"
    assert [piece for piece, trained in zip(shown.tokens, shown.trained) if trained] == ["Ã", "©", "<|im_end|>"]
