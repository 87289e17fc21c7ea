import random
from itertools import groupby

import pytest

from budwood.data.problems import LocatedError, Origin
from budwood.data.render import UNTRAINED, Encoded, Renderer
from budwood.data.rows import Message, Row
from budwood.errors import ConfigError, DataError
from tests import tiny
from tests.data import samples
from tests.data.samples import MERGES, TEMPLATES, byte_tokenizer, row, space_tokenizer

END = {"chatml": "<|im_end|>", "headers": "<|eot_id|>", "forgets": "<|im_end|>", "marked": "<|im_end|>"}
END |= {"two ends": "<|eot_id|>", "closes": "<|im_end|>"}
WRITES_BOS = ("headers", "brackets")


def spans(one: Encoded) -> list[tuple[int, int]]:
    """Runs of labelled positions, as (start, stop)."""
    runs, at = [], 0
    for trained, group in groupby(label != UNTRAINED for label in one.labels):
        length = len(list(group))
        runs += [(at, at + length)] if trained else []
        at += length
    return runs


def check_alignment(one: Encoded) -> None:
    assert len(one.input_ids) == len(one.labels) == len(one.loss_weights)
    for token, label, weight in zip(one.input_ids, one.labels, one.loss_weights):
        assert label in (UNTRAINED, token)
        assert (weight == 0.0) == (label == UNTRAINED)


def check_row(renderer: Renderer, source: Row, bos: int, end: str, same=lambda content: content) -> None:
    """The properties that every row has, whatever the template and tokenizer."""
    tokenizer = renderer.tokenizer
    answers = [i for i, message in enumerate(source.messages) if message.trained]
    seen = []
    for one in renderer.encode(source):
        check_alignment(one)
        assert one.input_ids.count(tokenizer.bos_token_id) == bos
        seen += [(one, *span) for span in spans(one)]
    assert len(seen) == len(answers)
    for (one, start, stop), at in zip(seen, answers):
        question = source.messages[0].content if source.continues else source.messages[:at]
        assert renderer.prompt(question) == one.input_ids[:start]
        ids = one.input_ids[start:stop]
        assert tokenizer.convert_ids_to_tokens(ids[-1]) == end and ids[-1] in renderer.end_token_ids
        assert renderer.decode(ids) == same(source.messages[at].content)
    assert renderer.prompt(source) == seen[-1][0].input_ids[: seen[-1][1]]


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(("merges", "words"), [((), False), (MERGES, False), (MERGES, True)])
@pytest.mark.parametrize("name", TEMPLATES)
def test_properties_of_random_rows(name, merges, words, bos):
    rng = random.Random(f"{name} {bos} {len(merges)} {words}")
    renderer = Renderer(byte_tokenizer(TEMPLATES[name], bos=bos, merges=merges, words=words))
    same = str.strip if name == "headers" else lambda content: content
    for _ in range(40):
        contents = [samples.text(rng) for _ in range(2 * rng.randint(1, 3))]
        source = row(*contents, continues=len(contents) == 2 and rng.random() < 0.5)
        check_row(renderer, source, int(bos or name in WRITES_BOS), END.get(name, "</s>"), same)


@pytest.mark.parametrize("name", ["brackets", "chatml", "endless", "none"])
def test_properties_with_a_tokenizer_that_puts_a_space_first(name):
    rng = random.Random(name)
    renderer = Renderer(space_tokenizer(TEMPLATES[name]))
    for _ in range(40):
        contents = ["q" + samples.text(rng, ["a", "b", "é", "\n", ":", " x"]) for _ in range(2 * rng.randint(1, 3))]
        source = row(*(content.strip() for content in contents), continues=len(contents) == 2)
        check_row(renderer, source, 1, END.get(name, "</s>"))


@pytest.mark.parametrize("template", [tiny.CHATML, None])
def test_properties_with_a_slow_tokenizer(template):
    rng = random.Random(0)
    renderer = Renderer(samples.SlowTokenizer(template))
    assert not renderer.tokenizer.is_fast
    for _ in range(20):
        contents = [samples.text(rng) for _ in range(2 * rng.randint(1, 3))]
        check_row(renderer, row(*contents), 0, "<|im_end|>")


def test_chatml_token_by_token():
    tokenizer = tiny.tokenizer()
    (one,) = Renderer(tokenizer).encode(row("hi", "yo", "so", "no"), index=4)
    expected = (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n[yo<|im_end|>]\n"
        "<|im_start|>user\nso<|im_end|>\n<|im_start|>assistant\n[no<|im_end|>]"
    )
    marked = expected.replace("[", "").replace("]", "")
    assert tokenizer.decode(one.input_ids) == marked
    assert one.input_ids == tokenizer(marked)["input_ids"]
    assert [tokenizer.decode(one.input_ids[a:b]) for a, b in spans(one)] == ["yo<|im_end|>", "no<|im_end|>"]
    assert one.supervised == 6 and one.row_index == 4 and one.origin == Origin("rows.jsonl", 1)


def test_tokens_that_would_join_prompt_and_answer_are_kept_apart():
    tokenizer = byte_tokenizer(merges=MERGES)
    joined = tokenizer("Q: a", add_special_tokens=False)["input_ids"]
    (one,) = Renderer(tokenizer).encode(row("Q:", " a", continues=True))
    assert tokenizer.convert_ids_to_tokens(joined) == ["Q", ":", "Ġa"]
    assert tokenizer.convert_ids_to_tokens(one.input_ids) == ["Q", ":", "Ġa", "</s>"]
    (one,) = Renderer(tokenizer).encode(row("Q: ", "a", continues=True))
    assert tokenizer.convert_ids_to_tokens(one.input_ids) == ["Q", ":Ġ", "a", "</s>"]
    assert [tokenizer.decode(one.input_ids[a:b]) for a, b in spans(one)] == ["a</s>"]


def test_tokens_that_change_before_the_boundary_are_those_of_the_prompt():
    """Two line feeds are one token at the end of a text, and two before a word: no token joins prompt and answer."""
    tokenizer = byte_tokenizer(merges=MERGES[:1], words=True)
    assert tokenizer.tokenize("q\n\n") == ["q", "ĊĊ"] and tokenizer.tokenize("q\n\nb") == ["q", "Ċ", "Ċ", "b"]
    (one,) = Renderer(tokenizer).encode(row("q\n\n", "b", continues=True))
    assert tokenizer.convert_ids_to_tokens(one.input_ids) == ["q", "ĊĊ", "b", "</s>"]


def test_a_continuation_gets_no_space_of_its_own():
    tokenizer = space_tokenizer()
    core = tokenizer.backend_tokenizer
    core.model = type(core.model)([("<unk>", 0.0), ("▁", -1.0), ("a", -1.0), ("b", -1.0), ("ab", -0.5)], unk_id=0)
    (one,) = Renderer(tokenizer).encode(row("a", "b", continues=True))
    assert tokenizer.convert_ids_to_tokens(one.input_ids) == ["<s>", "▁", "a", "b", "</s>"]


@pytest.mark.parametrize("bos", [False, True])
def test_one_beginning_whoever_writes_it(bos):
    by_template = Renderer(byte_tokenizer(samples.HEADERS, bos=bos)).encode(row("a", "b"))[0]
    assert by_template.input_ids[:1] == [by_template.input_ids[0]]
    tokenizer = byte_tokenizer(samples.HEADERS, bos=bos)
    assert tokenizer.decode(by_template.input_ids).startswith("<s><|head|>user")
    by_tokenizer = Renderer(byte_tokenizer(samples.CHATML, bos=bos)).encode(row("a", "b"))[0]
    assert tokenizer.decode(by_tokenizer.input_ids).startswith("<s><|im_start|>" if bos else "<|im_start|>")


def test_a_template_that_forgets_gives_one_sequence_a_turn():
    tokenizer = byte_tokenizer(samples.FORGETS)
    found = Renderer(tokenizer).encode(row("a", "x</think>b", "c", "y</think>d", weights=(1.0, 0.5, 1.0, 2.0)))
    texts = [tokenizer.decode(one.input_ids) for one in found]
    assert ["x</think>" in text for text in texts] == [True, False]
    assert [[tokenizer.decode(one.input_ids[a:b]) for a, b in spans(one)] for one in found] == [
        ["x</think>b<|im_end|>"],
        ["y</think>d<|im_end|>"],
    ]
    assert [max(one.loss_weights) for one in found] == [0.5, 2.0]
    assert len(Renderer(tokenizer).encode(row("a", "b", "c", "y</think>d"))) == 1


def test_an_end_is_appended_where_the_template_has_none():
    tokenizer = byte_tokenizer(samples.ENDLESS)
    found = Renderer(tokenizer).encode(row("a", "b", "c", "d"))
    assert [tokenizer.decode(one.input_ids) for one in found] == [
        "### user\na\n### assistant\nb</s>",
        "### user\na\n### assistant\nb\n### user\nc\n### assistant\nd</s>",
    ]


def test_the_end_of_a_turn_is_learned_not_the_end_of_the_text():
    tokenizer = byte_tokenizer(samples.TWO_ENDS)
    renderer = Renderer(tokenizer)
    (one,) = renderer.encode(row("a", "b", "c", "d"))
    assert [tokenizer.decode(one.input_ids[a:b]) for a, b in spans(one)] == ["b<|eot_id|>", "d<|eot_id|>"]
    assert renderer.end_token_ids == set(tokenizer.convert_tokens_to_ids(["</s>", "<|eot_id|>"]))


def test_an_answer_that_holds_the_end_token_is_learned_to_its_real_end():
    tokenizer = tiny.tokenizer()
    (one,) = Renderer(tokenizer).encode(row("a", "b<|im_end|>c", "d", "e"))
    answers = [tokenizer.decode(one.input_ids[a:b]) for a, b in spans(one)]
    assert answers == ["b<|im_end|>c<|im_end|>", "e<|im_end|>"]


def test_a_thought_that_the_template_adds_is_learned_and_not_decoded():
    tokenizer = byte_tokenizer(samples.MARKED)
    renderer = Renderer(tokenizer)
    (one,) = renderer.encode(row("a", "b"))
    ids = one.input_ids[slice(*spans(one)[0])]
    assert tokenizer.decode(ids) == "<think>\n\n</think>\n\nb<|im_end|>"
    assert renderer.decode(ids) == "b"


def test_only_trained_turns_have_labels_and_nothing_follows_the_last():
    messages = tuple(
        Message(role, text, trained=text == "d")
        for role, text in zip(("user", "assistant") * 3, "abcdef", strict=True)
    )
    tokenizer = tiny.tokenizer()
    (one,) = Renderer(tokenizer).encode(Row(messages, ("d",), Origin("x", 1), weights=(1, 1, 1, 0.25, 1, 1)))
    assert [tokenizer.decode(one.input_ids[a:b]) for a, b in spans(one)] == ["d<|im_end|>"]
    assert tokenizer.decode(one.input_ids).endswith("d<|im_end|>")
    assert set(one.loss_weights) == {0.0, 0.25}


def test_plain_text():
    tokenizer = byte_tokenizer(bos=True)
    renderer = Renderer(tokenizer, system="Be.")
    (one,) = renderer.encode(row("The sky is", " blue", continues=True))
    assert tokenizer.decode(one.input_ids) == "<s>Be.\n\nThe sky is blue</s>"
    assert renderer.prompt("The sky is") == one.input_ids[: spans(one)[0][0]]
    (one,) = renderer.encode(row("a", "b", "c", "d"))
    expected = "<s>Be.\n\nUser:\na\n\nAssistant:\nb</s>\n\nUser:\nc\n\nAssistant:\nd</s>"
    assert tokenizer.decode(one.input_ids) == expected


def test_a_plain_conversation_is_written_by_its_template_text():
    plain, tokenizer = Renderer(byte_tokenizer()), byte_tokenizer()
    tokenizer.chat_template = plain.template_text
    chat = Renderer(tokenizer)
    assert (plain.template, chat.template) == ("plain", "chat")
    assert plain.encode(row("a", "b", "c", "d")) == chat.encode(row("a", "b", "c", "d"))


def test_the_system_message_stands_first_unless_the_row_has_one():
    tokenizer = tiny.tokenizer()
    renderer = Renderer(tokenizer, system="S")
    assert tokenizer.decode(renderer.encode(row("a", "b"))[0].input_ids).startswith("<|im_start|>system\nS<|im_end|>")
    own = [Message("system", "T"), Message("user", "a")]
    assert tokenizer.decode(renderer.prompt(own)).count("system") == 1
    assert renderer.prompt("a") == renderer.prompt([Message("user", "a")])


def test_many_rows_at_once_are_the_same_and_an_error_stays_in_its_place():
    renderer = Renderer(byte_tokenizer(samples.BRACKETS, merges=MERGES))
    good = [row("a", "b"), row("c ", " d", "e", "f")]
    bad = Row((Message("system", "s"), Message("assistant", "x", True)), ("x",), Origin("f.jsonl", 9))
    found = renderer.encode_rows([good[0], bad, good[1]], first_index=10)
    assert found[0] == renderer.encode(good[0], 10) and found[2] == renderer.encode(good[1], 12)
    assert isinstance(found[1], LocatedError) and "f.jsonl, line 9" in str(found[1]) and "alternate" in str(found[1])
    with pytest.raises(DataError, match="alternate"):
        renderer.encode(bad)


def test_a_template_that_opens_elsewhere_says_what_to_do():
    renderer = Renderer(byte_tokenizer(samples.OPENS_ELSEWHERE))
    with pytest.raises(DataError, match=r"rows\.jsonl, line 1") as caught:
        renderer.encode(row("a", "b"))
    assert "<think>" in caught.value.got and "plain" in caught.value.action
    (one,) = renderer.encode(row("a", "<think>\nso</think>b"))
    assert renderer.tokenizer.decode(one.input_ids[slice(*spans(one)[0])]) == "so</think>b<|im_end|>"


def test_a_conversation_that_begins_with_an_answer():
    greeting = Row((Message("assistant", "hi", True),), ("hi",), Origin("f.jsonl", 9))
    with pytest.raises(DataError, match=r"f\.jsonl, line 9: the conversation begins with an answer"):
        Renderer(tiny.tokenizer()).encode(greeting)
    (one,) = Renderer(tiny.tokenizer(), system="S").encode(greeting)
    assert one.supervised == 3


def test_a_template_that_leaves_nothing_of_an_answer():
    template = samples.CHATML.replace("message['content']", "message['content'].split('</think>')[-1]")
    with pytest.raises(DataError, match="nothing of an answer"):
        Renderer(byte_tokenizer(template)).encode(row("a", "thought</think>"))


def test_a_template_that_sometimes_ends_an_answer():
    template = samples.CHATML.replace("'<|im_end|>\n'", "('' if 'odd' in message['content'] else '<|im_end|>\n')")
    with pytest.raises(DataError, match=r"without <\|im_end\|>"):
        Renderer(byte_tokenizer(template)).encode(row("a", "odd"))


def test_a_prompt_of_no_tokens_is_refused():
    with pytest.raises(DataError, match="nothing to continue"):
        Renderer(byte_tokenizer()).encode(row("", "b", continues=True))
    with pytest.raises(DataError, match="nothing to continue"):
        Renderer(byte_tokenizer()).prompt("")
    with pytest.raises(DataError, match="nothing to continue"):
        Renderer(tiny.tokenizer()).prompt([])
    assert Renderer(byte_tokenizer(bos=True)).prompt("") == [byte_tokenizer().bos_token_id]


@pytest.mark.parametrize(
    ("template", "asked", "system", "says"),
    [
        (None, "chat", None, "no chat template"),
        ("{{ raise_exception('never') }}", "auto", None, "never"),
        ("{{ messages[0]['content'] }}", "auto", None, "does not write"),
        ("{{ 1 + 'a' }}", "auto", None, "refused"),
        ("{% if %}", "auto", None, "refused"),
        (samples.BRACKETS, "auto", "S", "alternate"),
        ({"rag": samples.CHATML, "tools": samples.CHATML}, "auto", None, "default"),
    ],
)
def test_a_template_that_cannot_be_used(template, asked, system, says):
    with pytest.raises(ConfigError, match=says):
        Renderer(byte_tokenizer(template), asked, system)


@pytest.mark.parametrize("template", [None, samples.ENDLESS])
def test_a_tokenizer_without_any_end_is_refused(template):
    tokenizer = byte_tokenizer(template)
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="end token"):
        Renderer(tokenizer)


def test_of_several_templates_the_default_one_is_used():
    tokenizer = byte_tokenizer({"default": samples.CHATML, "tools": samples.HEADERS})
    assert Renderer(tokenizer).template_text == samples.CHATML


def test_decoding_stops_at_the_first_end():
    renderer = Renderer(byte_tokenizer(samples.HEADERS))
    ids = renderer.tokenizer("a é<|eot_id|>b", add_special_tokens=False)["input_ids"]
    assert renderer.decode(ids) == "a é" and renderer.decode(ids[:1]) == "a" and renderer.decode([]) == ""


def test_the_hash_changes_with_what_decides_rendering_only():
    base = Renderer(byte_tokenizer(samples.CHATML)).template_hash
    assert base == Renderer(byte_tokenizer(samples.CHATML, merges=MERGES)).template_hash and len(base) == 64
    others = [
        Renderer(byte_tokenizer(samples.HEADERS)),
        Renderer(byte_tokenizer(samples.CHATML), "plain"),
        Renderer(byte_tokenizer(samples.CHATML), system="S"),
        Renderer(byte_tokenizer(samples.CHATML, bos=True)),
    ]
    assert len({base, *(other.template_hash for other in others)}) == 5


def test_an_id_to_pad_with_is_always_there():
    assert Renderer(tiny.tokenizer()).pad_token_id == 257
    tokenizer = byte_tokenizer()
    assert Renderer(tokenizer).pad_token_id == tokenizer.eos_token_id


def test_text_with_special_tokens_is_noticed():
    renderer = Renderer(tiny.tokenizer())
    assert renderer.writes_special(row("a", "b<|im_end|>")) and not renderer.writes_special(row("a", "im_end"))
