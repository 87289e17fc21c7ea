"""The prompts of a bank on one model: vectors, and where the base allows it keys and values, computed once.

Where it does not (windows, ALiBi, recurrent layers), prompt and text run as one row each time (`tuning.prompt_rows`).
Keys and values are computed again when the model's weights, precision or device have changed, or the prompt's vectors.
A change of weights is seen by the version counters of the parameters: in-place operations and optimiser steps count,
assignments to `parameter.data` do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from peft import PeftConfig
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from budwood.errors import UsageError
from budwood.tuning.prompt_cache import PromptKeyValues, PromptStack, encode_prompt, generate_prompted, run_prompted
from budwood.tuning.prompt_rows import PromptRows, prove_rows
from budwood.tuning.prompt_support import cache_refusal, prove, require_prompt


@dataclass(frozen=True, eq=False)
class Prompt:
    """A trained soft prompt.

    Attributes:
        name: what the bank calls it.
        vectors: fp32, (n, d).
        config: PEFT's configuration, with which it is saved again.
    """

    name: str
    vectors: Float[Tensor, "n d"]
    config: PeftConfig


class Runtime:
    """Prompts and the model they stand in front of.

    Args:
        model: the base. It is not changed.
        prompts: at least one.

    Raises:
        NotSupportedError: prompts in front of a row would not be exact with this model.

    Attributes:
        cached: whether keys and values of the prompts are computed once and put in front of any text.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Prompt]) -> None:
        require_prompt(model)
        self.model, self.prompts = model, tuple(prompts)
        self.cached = cache_refusal(model) is None
        self._state: object = None
        self._known: dict[tuple[str, int], PromptKeyValues] = {}
        self._stack: PromptStack | None = None
        self._rows: PromptRows | None = None
        self._first: dict[str, Float[Tensor, " vocabulary"]] = {}

    def __len__(self) -> int:
        return len(self.prompts)

    def extended(self, prompt: Prompt) -> Runtime:
        """Return a runtime with one prompt more; keys and values of the others are not computed again."""
        longer = Runtime(self.model, [*self.prompts, prompt])
        known = {key: one for key, one in self._fresh().items() if key[1] == 0}  # other starts hang on the longest
        longer._state, longer._known = longer._current(), known
        return longer

    @property
    def slots(self) -> int:
        """The length n_max of the longest prompt."""
        return max(len(prompt.vectors) for prompt in self.prompts)

    def stack(self) -> PromptStack:
        """Return the prompts where they were trained: from position 0 on."""
        known = self._fresh()
        if self._stack is None:
            self._stack = PromptStack([self._encoded(known, prompt, 0) for prompt in self.prompts])
        return self._stack

    def rows(self) -> PromptRows:
        """Return the prompts as vectors for rows of prompt and text."""
        self._fresh()
        if self._rows is None:
            made = PromptRows(self.model, [prompt.vectors for prompt in self.prompts])
            prove_rows(made)
            self._rows = made
        return self._rows

    def first_logits(self, number: int) -> Float[Tensor, " vocabulary"]:
        """Return the fp32 logits of the token right after a prompt."""
        if self.cached:
            found = self.stack().prompts[number].first_logits
            assert found is not None  # a bank holds prompts, no prefixes
            return found
        rows, name = self.rows(), self.prompts[number].name
        if name not in self._first:
            self._first[name] = rows.first_logits(number)
        return self._first[name]

    def right_aligned(self) -> tuple[PromptKeyValues, ...]:
        """Return the prompts with the text at n_max for all of them: prompt i from position n_max − n_i on.

        Under rotary positions, which count by differences, each prompt sees a text from n_max on as in training.
        """
        known, slots = self._fresh(), self.slots
        return tuple(self._encoded(known, prompt, slots - len(prompt.vectors)) for prompt in self.prompts)

    def run(
        self, selection: Int[Tensor, " b"], input_ids: Int[Tensor, "b t"], mask: Int[Tensor, "b t"], **options: Any
    ) -> tuple[Any, DynamicCache | None]:
        """Run each row behind its prompt; see `run_prompted`. There is no cache where prompts are not cached."""
        if not self.cached:
            return self.rows().run(selection, input_ids, mask, **options), None
        return run_prompted(self.model, self.stack(), selection, input_ids, mask, **options)

    def generate(
        self,
        selection: Int[Tensor, " b"],
        input_ids: Int[Tensor, "b t"],
        mask: Int[Tensor, "b t"],
        *,
        context: DynamicCache | None = None,
        **options: Any,
    ) -> Int[Tensor, "rows t_new"]:
        """Continue each row behind its prompt; see `generate_prompted`."""
        if not self.cached:
            return self.rows().generate(selection, input_ids, mask, **options)
        return generate_prompted(self.model, self.stack(), selection, input_ids, mask, context=context, **options)

    def _encoded(self, known: dict[tuple[str, int], PromptKeyValues], prompt: Prompt, start: int) -> PromptKeyValues:
        key = (prompt.name, start)
        if key not in known:
            made = encode_prompt(self.model, prompt.vectors, start=start)
            if not known:
                prove(self.model, made)
            known[key] = made
        return known[key]

    def _fresh(self) -> dict[tuple[str, int], PromptKeyValues]:
        """Return what is known of the prompts, or nothing if the model or a prompt has changed since."""
        if self.model.training:
            raise UsageError(
                "the base is in training mode: dropout would enter the cached prompts", action="call eval()"
            )
        state = self._current()
        if state != self._state:
            self._state, self._known, self._stack = state, {}, None
            self._rows, self._first = None, {}
        return self._known

    def _current(self) -> object:
        """Return what the keys and values depend on, as versions; prompts count one by one."""
        weights = tuple((one._version, one.dtype, one.device) for one in self.model.parameters())
        return weights, tuple(prompt.vectors._version for prompt in self.prompts)

    def all_prompts(self, rows: int) -> list[Int[Tensor, " b"]]:
        """Return the selections in which all rows have prompt 0, prompt 1, …"""
        return [torch.full((rows,), i, dtype=torch.long, device=self.model.device) for i in range(len(self))]
