"""The one renderer: training, evaluation, chat and generation all turn messages into ids here.

What holds for every row, whatever the template and the tokenizer:

- The ids of a prompt are the beginning of the ids of its row, so that generation starts from what was trained. Where
  the tokenizer would merge characters of prompt and answer into one token, the two are tokenised apart.
- A label stands at each token of a trained answer, its end token included, and nowhere else. Labels go by position:
  that pad or eos occur elsewhere, or are the same token, changes nothing.
- The tokenizer's beginning (BOS) stands there once if the tokenizer or the template wants one.
- Nothing after the end token of the last trained turn is kept: no token before it can see it.

A row is one sequence if all its answers can be learned in one. Where the template rewrites earlier turns (it strips
their reasoning, say), or tokens merge over an earlier boundary, each trained turn becomes a sequence of its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from budwood.data.problems import LocatedError, Origin, or_raise
from budwood.data.rows import Message, Row
from budwood.data.settings import Template
from budwood.data.templates import PLAIN, Layout, chat_layout, chat_template, continuation_layout, special_tokens
from budwood.data.tokens import TokenIds, begins_with
from budwood.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNTRAINED = -100  # the label that the losses of torch and transformers ignore
_RULES = 1  # raise it when a change here alters the ids of any row


@dataclass(frozen=True, slots=True)
class Encoded:
    """One sequence. The three lists have one entry a token; labels are not shifted (the model or loss does that).

    Attributes:
        input_ids: the tokens.
        labels: the token where it is trained, -100 elsewhere.
        loss_weights: the factor of each token's loss, 0.0 where the label is -100.
        origin: where its row came from.
        row_index: index of its row among the rows that were encoded together.
    """

    input_ids: list[int]
    labels: list[int]
    loss_weights: list[float]
    origin: Origin
    row_index: int

    @property
    def supervised(self) -> int:
        """How many tokens the loss falls on. The first token is predicted from nothing, so it never counts."""
        return len(self.labels) - self.labels.count(UNTRAINED) - (self.labels[0] != UNTRAINED)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A trained answer: the text that asks for it, the text through its end token, and its weight."""

    prompt: str
    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class _Span:
    """Tokens from `start` to before `stop` are trained with `weight`."""

    start: int
    stop: int
    weight: float


class Renderer:
    """Messages to ids and masks, and generated ids to text.

    Args:
        tokenizer: any tokenizer of transformers, fast or slow.
        template: "chat" uses the tokenizer's chat template; "plain" uses none; "auto" is chat where there is one.
            Plain rows of prompt and completion are the two texts joined as they stand, then eos. Other plain rows
            are conversations with a heading a turn (`templates.PLAIN`), each answer ended by eos.
        system: a system message for every conversation without one. In plain rows of prompt and completion it comes
            first, with an empty line after it.

    Attributes:
        template: "chat" or "plain".
        template_text: the Jinja template of conversations, to be saved beside an adapter.
        template_hash: SHA-256 of all that decides how messages become text and ids, the vocabulary aside.
        end_token_ids: the ids that end an answer: the tokenizer's eos and the template's end of a turn.

    Raises:
        ConfigError: "chat" without a chat template, a template that cannot be used, or no end token at all.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template: Template = "auto", system: str | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.system = system
        self.template: Literal["chat", "plain"] = _choose(tokenizer, template)
        self.template_text: str = chat_template(tokenizer) if self.template == "chat" else PLAIN
        self._tokens = TokenIds(tokenizer)
        plain = continuation_layout(tokenizer, system) if self.template == "plain" else None
        self._conversation = chat_layout(tokenizer, self.template_text, system)
        self._continuation = plain or self._conversation
        self._special = re.compile("|".join(re.escape(token) for token in special_tokens(tokenizer)) or "(?!)")
        ends = {tokenizer.eos_token_id, self._conversation.end_id}
        self.end_token_ids: frozenset[int] = frozenset(end for end in ends if end is not None)

    @property
    def pad_token_id(self) -> int:
        """An id of the vocabulary to pad with. Pads are masked by position, so an end token serves as well."""
        pad = self.tokenizer.pad_token_id
        return int(pad) if pad is not None else min(self.end_token_ids)

    @property
    def template_hash(self) -> str:
        decides = {
            "rules": _RULES,
            "template": self.template,
            "text": self.template_text,
            "system": self.system,
            "beginning": self._tokens.beginning,
            "special": sorted((name, str(token)) for name, token in self.tokenizer.special_tokens_map.items()),
            "end": self._conversation.end_token,
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def encode(self, row: Row, index: int = 0) -> list[Encoded]:
        """Return the sequences of one row: one, or one a trained turn where they cannot share it.

        Raises:
            DataError: the template refuses the row, opens its answer in another way than it writes it, or leaves
                nothing of the prompt or of the answer.
        """
        return next(or_raise(self.encode_rows([row], index)))

    def encode_rows(self, rows: Sequence[Row], first_index: int = 0) -> list[list[Encoded] | LocatedError]:
        """As `encode` for many rows, tokenised together; an unusable row gives its error in its place."""
        turns = [self._turns(row) for row in rows]
        texts = [text for one in turns if isinstance(one, list) for turn in one for text in (turn.prompt, turn.text)]
        ids = iter(self._tokens.encode(texts))
        found: list[list[Encoded] | LocatedError] = []
        for index, (row, one) in enumerate(zip(rows, turns), start=first_index):
            if isinstance(one, list):
                pairs = [(next(ids), next(ids)) for _ in one]
                found.append(self._sequences(row, one, pairs, index))
            else:
                found.append(one)
        return found

    def prompt(self, source: Row | Sequence[Message] | str) -> list[int]:
        """Return the ids up to where generation starts.

        Args:
            source: a row (up to its last trained turn), a conversation to be answered, or a text: a user's message
                under a chat template, and text to be continued under the plain one.
        """
        layout, origin, messages = self._asked(source)
        messages = self._with_system(messages)
        try:
            ids = self._tokens.encode([layout.write(messages, True)])[0] if messages else []
        except LocatedError as error:
            raise _at(origin, error) from error
        if not ids:
            raise _nothing_to_continue(origin)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a generated answer, cut before its end token.

        Args:
            ids: the generated ids, without the prompt.
        """
        stop = next((i for i, one in enumerate(ids) if one in self.end_token_ids), len(ids))
        text = self.tokenizer.decode(list(ids[:stop]), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        text = str(text).removeprefix(self._conversation.lead)
        return text.removesuffix(self._conversation.close) if stop < len(ids) else text

    def writes_special(self, row: Row) -> bool:
        """Whether the row's own text holds a special token: mostly a row that was put into a template before."""
        return any(self._special.search(message.content) for message in row.messages)

    def _asked(self, source: Row | Sequence[Message] | str) -> tuple[Layout, Origin | None, list[Message]]:
        """The layout, the place and the messages of what is to be answered."""
        if isinstance(source, Row):
            return self._layout(source), source.origin, list(source.messages[: source.last_trained])
        if isinstance(source, str):
            return self._continuation, None, [Message("user", source)]
        return self._conversation, None, list(source)

    def _layout(self, row: Row) -> Layout:
        return self._continuation if row.continues else self._conversation

    def _with_system(self, messages: Sequence[Message]) -> list[Message]:
        """Put the system message first, unless there is none to put or the conversation has its own."""
        if self.system is None or (messages and messages[0].role == "system"):
            return list(messages)
        return [Message("system", self.system), *messages]

    def _turns(self, row: Row) -> list[_Turn] | LocatedError:
        layout, weights = self._layout(row), row.weights or (1.0,) * len(row.messages)
        try:
            return [
                _Turn(*layout.turn(self._with_system(row.messages[: i + 1])), weights[i])
                for i, message in enumerate(row.messages)
                if message.trained
            ]
        except LocatedError as error:
            return _at(row.origin, error)

    def _sequences(
        self, row: Row, turns: list[_Turn], pairs: list[tuple[list[int], list[int]]], index: int
    ) -> list[Encoded] | LocatedError:
        """Lay the turns into one sequence if each is a beginning of the last, else give each its own.

        Args:
            pairs: the ids of each turn's prompt and of its text, each tokenised as a whole.
        """
        layout, whole = self._layout(row), pairs[-1][1]
        shared = bool(layout.end_token) or len(turns) == 1
        if shared and all(begins_with(whole, prompt) and begins_with(whole, text) for prompt, text in pairs):
            spans = [_Span(len(prompt), len(text), turn.weight) for turn, (prompt, text) in zip(turns, pairs)]
            made = [(whole, spans)]
        else:
            made = [self._alone(turn, *pair) for turn, pair in zip(turns, pairs)]
        ended = [_ended(ids, spans, layout.end_id) for ids, spans in made]
        for _, spans in ended:
            if spans[0].start == 0:
                return _nothing_to_continue(row.origin)
            if any(span.stop - span.start < 2 for span in spans):
                return LocatedError("the chat template leaves nothing of an answer but its end", origin=row.origin)
        return [_encoded(ids, spans, row.origin, index) for ids, spans in ended]

    def _alone(self, turn: _Turn, prompt: list[int], text: list[int]) -> tuple[list[int], list[_Span]]:
        """One turn as a sequence of its own; prompt and answer are tokenised apart if a token would join them."""
        if not begins_with(text, prompt):
            text = prompt + self._tokens.continuation(turn.text[len(turn.prompt) :])
        return text, [_Span(len(prompt), len(text), turn.weight)]


def _choose(tokenizer: PreTrainedTokenizerBase, template: Template) -> Literal["chat", "plain"]:
    if template == "auto":
        return "chat" if tokenizer.chat_template else "plain"
    if template == "chat" and not tokenizer.chat_template:
        raise ConfigError("the tokenizer has no chat template", action="use the template 'auto' or 'plain'")
    return template


def _ended(ids: list[int], spans: list[_Span], end_id: int) -> tuple[list[int], list[_Span]]:
    """Append the end token to a sequence whose layout wrote none."""
    if ids[-1:] == [end_id]:
        return ids, spans
    last = spans[-1]
    return [*ids, end_id], [*spans[:-1], _Span(last.start, last.stop + 1, last.weight)]


def _encoded(ids: list[int], spans: list[_Span], origin: Origin, index: int) -> Encoded:
    labels, weights = [UNTRAINED] * len(ids), [0.0] * len(ids)
    for span in spans:
        labels[span.start : span.stop] = ids[span.start : span.stop]
        weights[span.start : span.stop] = [span.weight] * (span.stop - span.start)
    return Encoded(ids, labels, weights, origin, index)


def _at(origin: Origin | None, error: LocatedError) -> LocatedError:
    return LocatedError(error.problem, wanted=error.wanted, action=error.action, origin=origin)


def _nothing_to_continue(origin: Origin | None) -> LocatedError:
    action = "write a prompt, or use a tokenizer with a beginning token"
    return LocatedError("the prompt is empty: the model has nothing to continue", action=action, origin=origin)
