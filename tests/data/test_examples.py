import json
import random

import pytest

from budwood.data.examples import load_examples, sift
from budwood.data.problems import LocatedError, Origin
from budwood.data.render import Encoded, Renderer
from budwood.data.report import FIRST, LISTED, DataReport
from budwood.data.settings import DataSettings
from budwood.errors import DataError
from tests import tiny
from tests.data.samples import FORGETS, byte_tokenizer, row

RENDERER = Renderer(tiny.tokenizer())


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs(count):
    return [{"prompt": f"question {i}", "completion": f"answer {i}"} for i in range(count)]


def load(path, seed=0, renderer=RENDERER, **settings):
    return load_examples(path, renderer, DataSettings(**settings), seed=seed)


def prompts(found, sequences):
    return [row.messages[0].content for row in found.rows_of(sequences)]


def test_rows_are_split_and_counted(tmp_path):
    found = load(write(tmp_path / "a.jsonl", pairs(40)))
    assert (len(found.train), len(found.evaluation)) == (36, 4)
    report = found.report.to_dict()
    assert (report["rows"], report["kept"], report["train_rows"], report["evaluation_rows"]) == (40, 40, 36, 4)
    sequences = found.train + found.evaluation
    assert report["tokens"] == sum(len(one.input_ids) for one in sequences)
    assert report["supervised_tokens"] == sum(one.supervised for one in sequences)
    lengths = sorted(len(one.input_ids) for one in sequences)
    assert report["length_tokens"] == {"min": lengths[0], "median": lengths[19], "max": lengths[-1]}
    assert report["shapes"] == {"prompt/completion": 40} and report["roles"] == {"user": 40, "assistant": 40}
    json.dumps(report, allow_nan=False)


def test_the_split_depends_on_seed_and_prompt_not_on_order_or_renderer(tmp_path):
    rows = pairs(50)
    first = load(write(tmp_path / "a.jsonl", rows))
    random.Random(1).shuffle(rows)
    shuffled = load(write(tmp_path / "b.jsonl", rows))
    other = load(tmp_path / "a.jsonl", renderer=Renderer(byte_tokenizer(), "plain"))
    held = set(prompts(first, first.evaluation))
    assert held == set(prompts(shuffled, shuffled.evaluation)) == set(prompts(other, other.evaluation))
    assert held != set(prompts(first, load(tmp_path / "a.jsonl", seed=1).evaluation))


def test_identical_prompts_are_on_one_side(tmp_path):
    rows = [{"prompt": f"q  {i % 12}" if i // 12 % 2 else f"q {i % 12}", "completion": str(i)} for i in range(60)]
    for seed in range(20):
        found = load(write(tmp_path / "a.jsonl", rows), seed=seed, evaluation_fraction=0.4)
        sides = [{" ".join(p.split()) for p in prompts(found, part)} for part in (found.train, found.evaluation)]
        assert not sides[0] & sides[1] and len(found.evaluation) == 20


@pytest.mark.parametrize(
    ("count", "settings", "held"),
    [
        (4, {}, 0),
        (5, {}, 1),
        (100, {"evaluation_rows_max": 3}, 3),
        (100, {"evaluation_fraction": 0.0}, 0),
        (3, {"evaluation_fraction": 0.99}, 2),
    ],
)
def test_how_many_rows_are_held_out(tmp_path, count, settings, held):
    found = load(write(tmp_path / "a.jsonl", pairs(count)), **settings)
    assert (len(found.evaluation), len(found.train)) == (held, count - held)


def test_a_prompt_that_all_rows_share_stays_in_training(tmp_path):
    rows = [{"prompt": "q", "completion": str(i)} for i in range(30)]
    found = load(write(tmp_path / "a.jsonl", rows), evaluation_fraction=0.5)
    assert (len(found.train), found.evaluation) == (30, [])


def test_over_long_rows_are_dropped_and_counted(tmp_path):
    rows = pairs(20) + [{"prompt": "x" * 300, "completion": "y"}] * (FIRST + 2)
    found = load(write(tmp_path / "a.jsonl", rows), max_length=200)
    ((reason, dropped),) = found.report.to_dict()["dropped"].items()
    assert "200" in reason and dropped["count"] == FIRST + 2 and len(dropped["first"]) == FIRST
    assert dropped["first"][0].endswith("a.jsonl, line 21")
    assert found.report.kept == 20 and found.report.duplicates == FIRST + 1
    assert max(len(one.input_ids) for one in found.train) <= 200
    assert [found.rows[one.row_index].origin for one in found.train] == [one.origin for one in found.train]


def test_a_row_of_exactly_the_longest_length_is_kept(tmp_path):
    path = write(tmp_path / "a.jsonl", pairs(1))
    length = len(load(path).train[0].input_ids)
    assert len(load(path, max_length=length).train) == 1
    with pytest.raises(DataError, match="none of 1 rows"):
        load(path, max_length=length - 1)


def test_rows_of_weight_zero_are_dropped(tmp_path):
    rows = [*pairs(3), {"prompt": "a", "completion": "b", "weight": 0}]
    found = load(write(tmp_path / "a.jsonl", rows))
    assert found.report.to_dict()["dropped"]["weight 0"]["count"] == 1 and len(found.train) == 3


def test_a_row_that_needs_several_sequences_is_one_row(tmp_path):
    talk = [("user", "a"), ("assistant", "x</think>b"), ("user", "c"), ("assistant", "d")]
    rows = [{"messages": [{"role": role, "content": text} for role, text in talk]}, *pairs(2)]
    found = load(write(tmp_path / "a.jsonl", rows), renderer=Renderer(byte_tokenizer(FORGETS)))
    assert (found.report.kept, found.report.sequences, len(found.train), len(found.rows_of(found.train))) == (
        3,
        4,
        4,
        3,
    )


def test_several_files_are_read_in_order(tmp_path):
    paths = [write(tmp_path / "a.jsonl", pairs(2)), str(write(tmp_path / "b.jsonl", pairs(3)[2:]))]
    found = load(paths, evaluation_fraction=0.0)
    assert prompts(found, found.train) == ["question 0", "question 1", "question 2"]


def test_an_evaluation_file_is_used_whole_and_its_overlap_counted(tmp_path):
    path, other = write(tmp_path / "a.jsonl", pairs(10)), write(tmp_path / "b.jsonl", pairs(30)[8:])
    found = load(path, evaluation_file=other, evaluation_rows_max=1)
    assert (len(found.train), len(found.evaluation), found.report.overlap) == (10, 22, 2)
    assert prompts(found, found.evaluation)[0] == "question 8" and len(found.rows) == 32
    assert found.rows[found.evaluation[-1].row_index].origin.file == str(other)


def test_a_bad_row_is_raised_with_its_place(tmp_path):
    with pytest.raises(DataError, match=r"a.jsonl, line 3, field 'completion'"):
        load(write(tmp_path / "a.jsonl", [*pairs(2), {"prompt": "a", "completion": ""}]))


def test_a_row_without_supervised_tokens_is_an_error():
    silent = Encoded([1, 2], [1, -100], [1.0, 0.0], Origin("a.jsonl", 4), 0)
    with pytest.raises(DataError, match="no token of the row would be learned"):
        sift(row("a", "b"), [silent], RENDERER, DataSettings(), DataReport())


def test_rows_that_were_put_into_a_template_before_are_remarked(tmp_path):
    rows = [*pairs(2), {"prompt": "<|im_start|>user\na<|im_end|>", "completion": "b"}]
    ((reason, where),) = load(write(tmp_path / "a.jsonl", rows)).report.to_dict()["remarks"].items()
    assert "special token" in reason and where["count"] == 1


def test_all_problems_of_all_files_are_told_at_once(tmp_path):
    good = '{"prompt": "a", "completion": "b"}\n'
    first, held = tmp_path / "a.jsonl", tmp_path / "held.jsonl"
    first.write_text(good + "broken\n" + '{"prompt": "a", "completion": ""}\n' + '{"prompt": 3, "completion": "b"}\n')
    held.write_text(good + '{"x": 1}\n')
    with pytest.raises(DataError) as caught:
        load(first, evaluation_file=held)
    lines = caught.value.got.splitlines()
    assert lines[0] == "4 problems in the data:" and len(lines) == 5
    for line, place in zip(lines[1:], (f"{first}, line 2", f"{first}, line 3", f"{first}, line 4", f"{held}, line 2")):
        assert line.strip().startswith(place)
    assert "the value is the number 3" in lines[3]


def test_problems_beyond_the_first_are_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text("broken\n" * (LISTED + 5))
    with pytest.raises(DataError) as caught:
        load(tmp_path / "a.jsonl")
    lines = caught.value.got.splitlines()
    assert len(lines) == LISTED + 2 and lines[-1].strip() == "and 5 more"


def test_a_single_problem_keeps_its_parts(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "completion": "b"}\nbroken\n')
    with pytest.raises(LocatedError) as caught:
        load(tmp_path / "a.jsonl")
    assert caught.value.origin.line == 2 and caught.value.wanted
