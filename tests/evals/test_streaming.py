import pytest
import torch
from peft import MultitaskPromptTuningConfig, get_peft_model

from budwood.data.render import Renderer
from budwood.errors import NotSupportedError, UsageError
from budwood.evals._streaming import TextStream
from budwood.evals.generation import Sampling, generate, stream
from tests import tiny
from tests.data.samples import TEMPLATES, byte_tokenizer, row


def pieces_of(renderer, ids):
    pieces: list[str] = []
    writer = TextStream(renderer, pieces.append)
    writer.put(torch.tensor([[1, 2, 3]]))  # the prompt
    for one in ids:
        writer.put(torch.tensor([one]))
    writer.end()
    before = list(pieces)
    writer.finish(renderer.decode(ids))
    return pieces, before


@pytest.mark.parametrize("name", [name for name, template in TEMPLATES.items() if template])
@pytest.mark.parametrize("answer", ["so", "日本 é", "< </ans", "a</think>b", "1\n\n2", "</answer>"])
def test_pieces_joined_are_the_answer_under_every_template(name, answer):
    renderer = Renderer(byte_tokenizer(TEMPLATES[name]))
    talk = row("q", answer)
    ids = renderer.encode(talk)[-1].input_ids[len(renderer.prompt(talk)) :]
    pieces, _ = pieces_of(renderer, ids)
    assert "".join(pieces) == renderer.decode(ids)
    assert "�" not in "".join(pieces)


def test_a_text_is_shown_as_it_comes_a_character_at_a_time():
    renderer = Renderer(byte_tokenizer(TEMPLATES["chatml"]))
    pieces, before = pieces_of(renderer, renderer.tokenizer("né日", add_special_tokens=False).input_ids)
    assert pieces == before == ["n", "é", "日"]  # a byte of the last two alone shows nothing


def test_what_may_open_an_answer_is_held_back_until_it_is_none():
    renderer = Renderer(byte_tokenizer(TEMPLATES["marked"]))
    pieces, _ = pieces_of(renderer, renderer.tokenizer("<thin air", add_special_tokens=False).input_ids)
    assert pieces[0] == "<thin " and "".join(pieces) == "<thin air"


def test_an_answer_cut_by_the_limit_is_whole(renderer):
    ids = renderer.tokenizer("日", add_special_tokens=False).input_ids[:2]
    pieces, before = pieces_of(renderer, ids)
    assert before == [] and "".join(pieces) == renderer.decode(ids)


@pytest.mark.parametrize("sampling", [None, Sampling(seed=3)])
def test_a_streamed_answer_is_the_generated_one(trained, renderer, learned_rows, sampling):
    for talk in learned_rows:
        pieces: list[str] = []
        prompt = renderer.prompt(talk)
        made = stream(trained, prompt, renderer, max_new_tokens=20, on_text=pieces.append, sampling=sampling)
        assert [made] == generate(trained, [prompt], renderer, max_new_tokens=20, sampling=sampling)
        assert "".join(pieces) == made.text


def test_what_cannot_be_generated_cannot_be_streamed(renderer):
    config = MultitaskPromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, num_tasks=2)
    soft = get_peft_model(tiny.llama(), config)
    with pytest.raises(NotSupportedError):
        stream(soft, [65], renderer, max_new_tokens=4, on_text=print)
    with pytest.raises(UsageError):
        stream(tiny.llama(), [65], renderer, max_new_tokens=0, on_text=print)
    with pytest.raises(UsageError):
        stream(tiny.llama(), [65], renderer, max_new_tokens=1, on_text=print, sampling=Sampling(temperature=0))
