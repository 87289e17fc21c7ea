import json
import subprocess
import sys

import pytest

from budwood.data.files import Record
from budwood.data.problems import LocatedError, Origin
from budwood.data.rows import SHAPES, read_rows, scan_rows, to_row
from budwood.errors import DataError

ORIGIN = Origin("rows.jsonl", 7)


def made(**values):
    return to_row(Record(values, ORIGIN))


def refused(**values) -> LocatedError:
    with pytest.raises(DataError) as caught:
        made(**values)
    assert caught.value.origin == ORIGIN and "rows.jsonl, line 7" in str(caught.value)
    return caught.value


def turns(row):
    return [(message.role, message.content, message.trained) for message in row.messages]


def test_prompt_and_completion():
    row = made(prompt="a ", completion=" b", id=3)
    assert turns(row) == [("user", "a ", False), ("assistant", " b", True)]
    assert (row.references, row.origin, row.task, row.weights) == ((" b",), ORIGIN, None, None)
    assert row.continues and row.shape == "prompt/completion"


@pytest.mark.parametrize("extra", [{}, {"input": ""}, {"input": None}, {"input": " "}])
def test_alpaca_without_input(extra):
    row = made(instruction="Do.", output="Done.", **extra)
    assert turns(row) == [("user", "Do.", False), ("assistant", "Done.", True)]
    assert not row.continues


def test_alpaca_with_input():
    assert made(instruction="Do.", input="this", output="x").messages[0].content == "Do.\n\nthis"


def test_messages_train_every_assistant_turn():
    talk = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    row = made(messages=[{"role": role, "content": content, "name": None} for role, content in talk])
    assert [message.trained for message in row.messages] == [False, False, True, False, True]
    assert row.references == ("d",) and row.last_trained == 4
    assert [message.content for message in row.prompt] == ["s", "a"]


def test_a_message_of_weight_zero_is_not_trained():
    talk = [("user", "a", None), ("assistant", "b", 0), ("user", "c", None), ("assistant", "d", 2)]
    row = made(messages=[{"role": role, "content": text, "weight": w} for role, text, w in talk], weight=0.5)
    assert [message.trained for message in row.messages] == [False, False, False, True]
    assert row.weights == (0.5, 0.0, 0.5, 1.0)


def test_sharegpt_is_messages_in_other_words():
    talk = [("system", "s"), ("human", "a"), ("gpt", "b"), ("user", "c"), ("assistant", "d")]
    row = made(conversations=[{"from": who, "value": text} for who, text in talk], id="x")
    roles = ["system", "user", "assistant", "user", "assistant"]
    assert turns(row) == [(role, text, role == "assistant") for role, (_, text) in zip(roles, talk)]
    assert (row.shape, row.references, row.weights, row.continues) == ("sharegpt", ("d",), None, False)


def test_the_system_field_of_sharegpt_is_its_first_turn():
    talk = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 2}]
    row = made(conversations=talk, system="Be kind.")
    assert turns(row) == [("system", "Be kind.", False), ("user", "a", False), ("assistant", "b", True)]
    assert row.weights == (1.0, 1.0, 2.0)
    assert len(made(conversations=talk, system="").messages) == 2


@pytest.mark.parametrize(
    ("talk", "field", "told"),
    [
        ([{"from": "human", "value": "a"}], "conversations", "no turn has the role 'gpt'"),
        ([{"from": "tool", "value": "a"}], "conversations[0].from", "no role 'tool'"),
        ([{"role": "user", "content": "a"}], "conversations[0]", "no 'from'"),
        ([{"from": "gpt", "value": " "}], "conversations[0].value", "empty"),
        (["hello"], "conversations[0]", "the text 'hello'"),
        ([], "conversations", "an empty list"),
    ],
)
def test_bad_sharegpt_rows_name_the_field(talk, field, told):
    error = refused(conversations=talk)
    assert error.field == field and told in error.problem


def test_instruction_task():
    examples = [{"input": "p", "output": "q"}]
    row = made(definition="D.", input="i", outputs=["x", "y"], positive_examples=examples, task_id="t1")
    assert turns(row) == [("user", "D.\n\ni", False), ("assistant", "x", True)]
    assert row.references == ("x", "y") and row.task == "t1"


@pytest.mark.parametrize(("weight", "factor"), [(2, 2.0), (0, 0.0), ("0.25", 0.25)])
def test_a_weight_scales_the_row(weight, factor):
    assert made(prompt="a", completion="b", weight=weight).weights == (factor, factor)


@pytest.mark.parametrize("weight", [1, 1.0, "1", None, ""])
def test_weight_one_is_no_weight(weight):
    assert made(prompt="a", completion="b", weight=weight).weights is None


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "much", [1], True, 10**400])
def test_a_weight_must_be_finite_and_not_negative(weight):
    assert refused(prompt="a", completion="b", weight=weight).field == "weight"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"prompt": 3, "completion": "b"}, "prompt"),
        ({"prompt": "a", "completion": None}, "completion"),
        ({"prompt": "a", "completion": ["b"]}, "completion"),
        ({"prompt": "a", "completion": ""}, "completion"),
        ({"prompt": "a", "completion": " \n"}, "completion"),
        ({"prompt": "half \ud800", "completion": "b"}, "prompt"),
        ({"instruction": "a", "input": 4, "output": "b"}, "input"),
        ({"instruction": "a", "output": ""}, "output"),
        ({"definition": "d", "input": "i", "outputs": []}, "outputs"),
        ({"definition": "d", "input": "i", "outputs": "x"}, "outputs"),
        ({"definition": "d", "input": "i", "outputs": ["x", 2]}, "outputs[1]"),
        ({"definition": "d", "input": "i", "outputs": ["x"], "task_id": 3}, "task_id"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"from": "human", "value": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "assistant", "content": "a", "weight": 0}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]},
            "messages[1].content",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "asistant", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": None, "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": "a", "weight": -1}]}, "messages[0].weight"),
    ],
)
def test_a_bad_field_is_named(values, field):
    assert refused(**values).field == field


def test_an_unknown_role_gets_the_nearest():
    assert "'assistant'" in refused(messages=[{"role": "asistant", "content": "a"}]).wanted


def test_an_unknown_shape_lists_the_shapes_the_fields_and_the_nearest():
    error = refused(Promt="a", completion="b")
    assert all(shape.example in error.wanted for shape in SHAPES)
    assert "'Promt', 'completion'" in error.problem
    assert "prompt/completion" in error.action and "rename 'Promt' to 'prompt'" in error.action
    assert "add 'outputs'" in refused(definition="a", input="b").action
    assert "nearest" not in refused(x="a").action
    assert "none" in refused().problem


def test_a_csv_without_header_is_told_to_have_one(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("What is 2 + 2?,4\nAnd 3 + 3?,6\n")
    with pytest.raises(DataError, match="first line of the file must hold the names"):
        list(read_rows(path))


def test_fields_that_are_null_do_not_make_a_shape():
    row = made(prompt=None, completion=None, messages=[{"role": "assistant", "content": "a"}])
    assert row.shape == "messages"


def test_a_row_of_two_shapes_is_refused():
    assert "several shapes" in refused(prompt="a", completion="b", instruction="c", output="d").problem


def test_the_examples_of_the_shapes_are_rows_of_those_shapes():
    for shape in SHAPES:
        assert to_row(Record(json.loads(shape.example), ORIGIN)).shape == shape.name


def test_scanning_goes_on_after_a_bad_row(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n{"x": 1}\nbroken\n{"prompt": "c", "completion": "d"}\n')
    assert [isinstance(one, LocatedError) for one in scan_rows(path)] == [False, True, True, False]


@pytest.mark.parametrize("name", ["settings", "rows", "files"])
def test_reading_rows_loads_neither_torch_nor_transformers(name):
    code = f"import sys, budwood.data.{name}; print(sorted({{'torch', 'transformers', 'pyarrow'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
