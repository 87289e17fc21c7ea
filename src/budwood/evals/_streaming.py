"""An answer shown while it is written: ids in, the text that is settled out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor
from transformers.generation import BaseStreamer

from budwood.data.templates import chat_layout

if TYPE_CHECKING:
    from budwood.data.render import Renderer

OnText = Callable[[str], None]
HALF_CHARACTER = "\ufffd"  # what tokenizers write for the bytes of a character that is not complete yet


class TextStream(BaseStreamer):
    """Passes on what the next ids can no longer change; `finish` passes on the rest.

    Held back are the bytes of an unfinished character, and what may become the template's opening or closing words of
    an answer, which are no part of it (Qwen3 opens with `<think>`).

    Args:
        renderer: decodes.
        on_text: takes each new piece. The pieces joined are the text of the answer.
    """

    def __init__(self, renderer: Renderer, on_text: OnText) -> None:
        layout = chat_layout(renderer.tokenizer, renderer.template_text, renderer.system)
        self._renderer, self._on_text = renderer, on_text
        self._lead, self._close = layout.lead, layout.close
        self._ids: list[int] | None = None  # None until the prompt has come
        self._shown = ""

    def put(self, value: Tensor) -> None:
        """Take ids as `generate` hands them over: first those of the prompt, then one at a time."""
        if self._ids is None:
            self._ids = []
            return
        self._ids += value.flatten().tolist()
        self._show(self._settled(self._renderer.decode(self._ids)))

    def end(self) -> None:
        """Do nothing: the text of the whole answer comes with `finish`."""

    def finish(self, text: str) -> None:
        """Pass on what of the answer's `text` was held back."""
        self._show(text)

    def _settled(self, text: str) -> str:
        if self._lead.startswith(text):
            return ""
        text = text.rstrip(HALF_CHARACTER)
        held = next(n for n in range(min(len(self._close), len(text)), -1, -1) if text.endswith(self._close[:n]))
        return text[: len(text) - held]

    def _show(self, text: str) -> None:
        if len(text) > len(self._shown) and text.startswith(self._shown):
            self._on_text(text[len(self._shown) :])
            self._shown = text
