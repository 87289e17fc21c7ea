"""A conversation with an adapted model: the run's own renderer and system message, turn after turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import nn

from budwood.data.render import Renderer
from budwood.data.rows import Message
from budwood.evals.generation import Generation, Sampling, stream
from budwood.run import open_run
from budwood.tuning.soft_prompts import refuse_soft_prompt


class Conversation:
    """What was said so far, and the model that answers.

    Args:
        model: the base with its adapter.
        renderer: turns what was said into ids; its system message comes first.
        max_new_tokens: the longest answer.
        sampling: None takes the likeliest token each time. The draws depend on its seed and the number of the turn.

    Attributes:
        messages: what was said, without the system message.
    """

    def __init__(
        self, model: nn.Module, renderer: Renderer, *, max_new_tokens: int, sampling: Sampling | None
    ) -> None:
        refuse_soft_prompt(model)
        self.messages: list[Message] = []
        self._model, self._renderer = model, renderer
        self._max_new_tokens, self._sampling = max_new_tokens, sampling

    def ask(self, text: str, on_text: Callable[[str], None] = lambda piece: None) -> Generation:
        """Answer `text` after all that was said before. A turn that fails is not kept.

        Args:
            text: what the user says.
            on_text: called with each piece of the answer as it is written.

        Raises:
            DataError: the conversation no longer fits the model's context, or the template refuses it.
        """
        asked = [*self.messages, Message("user", text)]
        sampling = self._sampling and replace(self._sampling, seed=self._sampling.seed + len(self.messages) // 2)
        made = stream(
            self._model,
            self._renderer.prompt(asked),
            self._renderer,
            max_new_tokens=self._max_new_tokens,
            on_text=on_text,
            sampling=sampling,
        )
        self.messages = [*asked, Message("assistant", made.text)]
        return made

    def reset(self) -> None:
        """Forget what was said."""
        self.messages = []


def open_conversation(
    path: str | Path,
    *,
    base: str | None = None,
    system: str | None = None,
    max_new_tokens: int = 512,
    temperature: float = 0.0,
    seed: int = 0,
    force: bool = False,
) -> Conversation:
    """Load a run, or any PEFT adapter folder, to talk to it.

    Args:
        base: another place of the base.
        system: a system message in place of the one of the training.
        max_new_tokens: the longest answer.
        temperature: 0 takes the likeliest token each time.
        seed: of the draws.
        force: accept a base whose weights differ from those the adapter was made on.
    """
    loaded = open_run(path, base=base, force=force).open()
    renderer = loaded.renderer
    if system is not None:
        renderer = Renderer(loaded.tokenizer, renderer.template, system)
    sampling = Sampling(temperature, seed=seed) if temperature > 0 else None
    return Conversation(loaded.model, renderer, max_new_tokens=max_new_tokens, sampling=sampling)
