import pytest

from budwood.data.offsets import OffsetTokens
from budwood.data.probes import Probe, encode_probes, last_mention
from budwood.data.problems import Origin
from budwood.data.render import UNTRAINED
from budwood.errors import DataError
from tests import tiny
from tests.data.samples import MERGES, byte_tokenizer, space_tokenizer

ORIGIN = Origin("facts.jsonl", 3)


@pytest.mark.parametrize(
    ("text", "phrase", "found"),
    [
        ("Rome or Rome", "Rome", "8:12"),
        ("Romeo saw Rome and a Roman", "Rome", "10:14"),
        ("12 of 112 and 120", "12", "0:2"),
        ("A Baker came", "baker", "2:7"),
        ("baker or Baker", "baker", "0:5"),
        ("Romeo", "Rome", "0:4"),
        ("C++ and C++.", "C++", "8:11"),
        ("(a.b) axb", "a.b", "1:4"),
        ("日本に日本", "日本", "3:5"),
        ("nothing", "else", None),
        ("nothing", "", None),
    ],
)
def test_last_mention(text, phrase, found):
    span = last_mention(text, phrase)
    assert (span and f"{span[0]}:{span[1]}") == found


@pytest.mark.parametrize("make", [lambda: byte_tokenizer(merges=MERGES, bos=True), space_tokenizer, tiny.tokenizer])
def test_labels_stand_at_the_tokens_of_the_target_and_nowhere_else(make):
    tokenizer = make()
    text = "The capital of Peru is Lima ."
    probes = [Probe(text, (23, 27), ORIGIN), Probe("a b", (2, 3), ORIGIN)]
    encoded = encode_probes(probes, OffsetTokens(tokenizer))
    assert [one.row_index for one in encoded] == [0, 1]
    for probe, one in zip(probes, encoded, strict=True):
        learned = [label for label in one.labels if label != UNTRAINED]
        assert tokenizer.decode(learned).strip() == probe.answer
        assert one.loss_weights == [float(label != UNTRAINED) for label in one.labels]
        assert [a for a, b in zip(one.input_ids, one.labels, strict=True) if b != UNTRAINED] == learned
        assert one.origin == ORIGIN


def test_prompt_and_answer():
    probe = Probe("It is Lima .", (6, 10), ORIGIN)
    assert (probe.prompt, probe.answer) == ("It is ", "Lima")


def test_a_target_at_the_beginning_is_refused():
    with pytest.raises(DataError, match=r"facts.jsonl, line 3: nothing stands before 'Lima'"):
        encode_probes([Probe("Lima it is", (0, 4), ORIGIN)], OffsetTokens(tiny.tokenizer()))
