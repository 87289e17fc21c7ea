"""A conversation with a tiny adapter."""

from __future__ import annotations

import pytest
import torch
from peft import MultitaskPromptTuningConfig, PromptTuningConfig, get_peft_model

from budwood import _chat
from budwood._chat import Conversation
from budwood.data.render import Renderer
from budwood.data.rows import Message
from budwood.errors import DataError, NotSupportedError
from budwood.evals.generation import Sampling, generate
from tests import tiny


def talk(sampling: Sampling | None = None, system: str | None = None, limit: int = 6) -> Conversation:
    return Conversation(
        tiny.llama(), Renderer(tiny.tokenizer(), system=system), max_new_tokens=limit, sampling=sampling
    )


def test_each_turn_sees_those_before_it_and_the_system_message():
    conversation, renderer = talk(system="S"), Renderer(tiny.tokenizer(), system="S")
    pieces: list[str] = []
    first = conversation.ask("a", pieces.append)
    assert "".join(pieces) == first.text
    second = conversation.ask("b")
    said = [Message("user", "a"), Message("assistant", first.text), Message("user", "b")]
    prompt = renderer.prompt(said)
    assert renderer.tokenizer.decode(prompt).startswith("<|im_start|>system\nS<|im_end|>")
    assert [second] == generate(tiny.llama(), [prompt], renderer, max_new_tokens=6)
    assert conversation.messages == [*said, Message("assistant", second.text)]


def test_a_reset_forgets():
    conversation = talk()
    first = conversation.ask("a")
    conversation.ask("b")
    conversation.reset()
    assert conversation.messages == [] and conversation.ask("a") == first


def test_draws_differ_by_turn_and_repeat_with_the_seed():
    answers = []
    for _ in range(2):
        conversation = talk(Sampling(1.0, seed=5), limit=12)
        made = [conversation.ask("a")]
        conversation.messages = [
            Message("user", "x"),
            Message("assistant", "y"),
        ]  # the second turn, with its own draws
        answers.append([*made, conversation.ask("a")])
    assert answers[0] == answers[1]
    assert answers[0][0].ids != answers[0][1].ids


def test_a_turn_that_does_not_fit_is_not_kept():
    conversation = talk()
    conversation.ask("a")
    before = list(conversation.messages)
    with pytest.raises(DataError, match="tokens"):
        conversation.ask("x" * 300)
    assert conversation.messages == before
    conversation.ask("b")


def test_a_soft_prompt_that_cannot_talk_is_refused_before_anyone_types():
    config = MultitaskPromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, num_tasks=2)
    with pytest.raises(NotSupportedError):
        Conversation(get_peft_model(tiny.llama(), config), Renderer(tiny.tokenizer()), max_new_tokens=4, sampling=None)


def test_a_soft_prompt_talks():
    torch.manual_seed(0)
    soft = get_peft_model(tiny.llama(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    pieces: list[str] = []
    made = Conversation(soft, Renderer(tiny.tokenizer()), max_new_tokens=4, sampling=None).ask("a", pieces.append)
    assert made.ids and "".join(pieces) == made.text


def test_opening_takes_the_runs_renderer_unless_told_otherwise(monkeypatch):
    class Loaded:
        model, tokenizer, renderer = tiny.llama(), tiny.tokenizer(), Renderer(tiny.tokenizer(), system="S")

    class Run:
        def open(self):
            return Loaded

    asked: dict = {}
    monkeypatch.setattr(_chat, "open_run", lambda path, **given: asked.update(path=path, **given) or Run())
    kept = _chat.open_conversation("runs/a", base="b", force=True)
    assert asked == {"path": "runs/a", "base": "b", "force": True}
    assert kept._renderer is Loaded.renderer and kept._sampling is None
    other = _chat.open_conversation("runs/a", system="T", temperature=0.5, seed=2)
    assert other._renderer.system == "T" and other._sampling == Sampling(0.5, seed=2)
