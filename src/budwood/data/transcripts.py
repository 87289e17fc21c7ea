"""A conversation written as plain text, one turn a paragraph, for what learns from text and not from turns."""

from __future__ import annotations

from collections.abc import Sequence

from budwood.data.rows import Message

_HEADINGS = {"system": "", "user": "User: ", "assistant": "Assistant: "}


def transcript(messages: Sequence[Message]) -> str:
    """Return the turns with who speaks in front, an empty line between them."""
    return "\n\n".join(f"{_HEADINGS[message.role]}{message.content.strip()}" for message in messages)
