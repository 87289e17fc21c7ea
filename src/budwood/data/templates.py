"""Messages to text: the chat template of the tokenizer, or plain text; and where an answer ends in that text.

Where an answer begins and ends is never read from markers in the template, which most templates lack. It is found by
writing a conversation twice, up to the answer and through it, and by one probe that shows what follows an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from budwood.data.problems import LocatedError
from budwood.data.rows import Message
from budwood.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Conversations for tokenizers without a chat template: a heading a turn, an empty line between turns.
PLAIN = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'user' %}{{ 'User:\n' + message['content'] + '\n\n' }}"
    "{% else %}{{ 'Assistant:\n' + message['content'] + eos_token + '\n\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}"
)
_ANSWER = "Xanadu"

# (messages, whether to go on to where the next answer begins) -> text
Writer = Callable[[Sequence[Message], bool], str]


@dataclass(frozen=True, slots=True)
class Layout:
    """How conversations are written, and what stands around an answer.

    Attributes:
        write: the text of messages; with True also the opening of the next answer.
        lead: between the opening and an answer's own text.
        close: between an answer's own text and its end token.
        tail: all that follows the answer's own text at the end of a conversation.
        end_token: the token that ends an answer; "" where the layout writes none.
        end_id: id of the end token; where the layout writes none, the tokenizer's eos, to be appended.
    """

    write: Writer
    lead: str
    close: str
    tail: str
    end_token: str
    end_id: int

    def turn(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Return the text up to the last message's own, and the text through its end token.

        Raises:
            LocatedError: (without a place) the template opens an answer in another way than it writes one.
        """
        if len(messages) < 2:
            raise LocatedError(
                "the conversation begins with an answer: there is nothing that it answers",
                action="put a user's message before it, or give it the weight 0",
            )
        opened, whole = self.write(messages[:-1], True), self.write(messages, False)
        if not whole.startswith(opened):
            raise LocatedError(
                f"the chat template opens an answer with {_last(opened)} but writes this one in another way",
                wanted="a template whose opening is the beginning of the answer as it writes it",
                action="begin the answers as the opening ends, or use the template 'plain', or give the tokenizer"
                " another chat template",
            )
        if not self.end_token:
            return opened, whole.removesuffix(self.tail)
        end = whole.rfind(self.end_token, len(opened))
        if end < 0:
            raise LocatedError(
                f"the chat template ends this answer without {self.end_token}, unlike others",
                action="look at the row with `budwood data show`, or use the template 'plain'",
            )
        return opened, whole[: end + len(self.end_token)]


def chat_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the tokenizer's chat template; of several, the one for ordinary conversations."""
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        problem = "the tokenizer has several chat templates and none is called 'default'"
        raise ConfigError(problem, action="set tokenizer.chat_template to one of them") from error


def chat_layout(tokenizer: PreTrainedTokenizerBase, template: str, system: str | None) -> Layout:
    """Return the layout of a chat template, after one look at how it writes an answer.

    Raises:
        ConfigError: the template refuses a plain question and answer (or the system message), does not write the
            answer, or nothing ends it.
    """

    def write(messages: Sequence[Message], opened: bool) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return str(
                tokenizer.apply_chat_template(
                    turns, chat_template=template, tokenize=False, add_generation_prompt=opened
                )
            )
        except Exception as error:  # a template is a program: it can fail with anything
            raise LocatedError(
                f"the chat template refused the conversation: {error or type(error).__name__}",
                action="check the roles and their order; some templates know no system message",
            ) from error

    return _probed(write, tokenizer, system)


def continuation_layout(tokenizer: PreTrainedTokenizerBase, system: str | None) -> Layout:
    """Return the layout of plain text: the contents one after the other, as they stand, then eos."""
    eos = _eos(tokenizer)[0]

    def write(messages: Sequence[Message], opened: bool) -> str:
        parts = [message.content + ("\n\n" if message.role == "system" else "") for message in messages]
        return "".join(parts) + ("" if opened else eos)

    return _probed(write, tokenizer, system)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the texts of the tokenizer's special tokens."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def _probed(write: Writer, tokenizer: PreTrainedTokenizerBase, system: str | None) -> Layout:
    question = [Message("system", system)] if system is not None else []
    question.append(Message("user", "Where?"))
    try:
        opened, whole = write(question, True), write([*question, Message("assistant", _ANSWER)], False)
    except LocatedError as error:
        raise ConfigError(error.problem, action=error.action) from error
    before, found, tail = whole.rpartition(_ANSWER)
    if not found:
        raise ConfigError("the chat template does not write the text of an answer", action="use the template 'plain'")
    lead = before.removeprefix(opened) if before.startswith(opened) else ""
    end = _first_end(tail, tokenizer)
    if end is None:
        return Layout(write, lead, "", tail, "", _eos(tokenizer)[1])
    return Layout(write, lead, tail[: tail.index(end[0])], tail, *end)


def _first_end(tail: str, tokenizer: PreTrainedTokenizerBase) -> tuple[str, int] | None:
    """Return the first special token after an answer, with its id; an added token that is not special is second."""
    added = [(token.content, index, token.special) for index, token in tokenizer.added_tokens_decoder.items()]
    there = [one for one in added if one[0] in tail]
    there.sort(key=lambda one: (not one[2], tail.index(one[0]), -len(one[0])))
    return there[0][:2] if there else None


def _eos(tokenizer: PreTrainedTokenizerBase) -> tuple[str, int]:
    if tokenizer.eos_token is None:
        raise ConfigError(
            "the tokenizer has no end token", action="set its eos_token: without one a model never stops"
        )
    return str(tokenizer.eos_token), int(tokenizer.eos_token_id)


def _last(text: str) -> str:
    return json.dumps(text[-40:], ensure_ascii=False)
