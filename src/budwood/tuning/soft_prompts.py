"""Models with a soft prompt in front that generate as they were trained, on any version of transformers.

`Prompted` is what evaluation and chat rely on; `SoftPrompt` is PEFT's prompt tuning, P-tuning and prefix tuning, one
prompt for all rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from peft import PeftModel, PeftType
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig, PreTrainedConfig, PreTrainedModel

from budwood.errors import NotSupportedError
from budwood.tuning.prompt_cache import (
    PromptKeyValues,
    PromptStack,
    align_left,
    encode_prompt,
    generate_prompted,
    layers_of,
    run_prompted,
)
from budwood.tuning.prompt_rows import PromptRows, prove_rows
from budwood.tuning.prompt_support import cache_refusal, prove, require_cache, require_prompt

VECTORS = (PeftType.PROMPT_TUNING, PeftType.P_TUNING)


@dataclass(frozen=True, eq=False)
class Choice:
    """A prompt for each row of a batch.

    Attributes:
        selection: its number, (b,).
        scores: of all prompts, larger is better, (b, m); None where the choice was given.
        context: keys and values of the chosen prompts and the text, where the selector had to compute them; with the
            ids and the mask they belong to.
    """

    selection: Int[Tensor, " b"]
    scores: Float[Tensor, "b m"] | None = None
    context: tuple[DynamicCache, Int[Tensor, "b t"], Int[Tensor, "b t"]] | None = None

    def context_of(self, input_ids: Tensor, mask: Tensor) -> DynamicCache | None:
        """Return the cache if it belongs to this very batch."""
        if self.context is None:
            return None
        cache, ids, known_mask = self.context
        return cache if torch.equal(ids, input_ids) and torch.equal(known_mask, mask) else None


class Prompted(nn.Module, ABC):
    """A base with soft prompts in front of its text. It generates like a model of transformers.

    Attributes:
        model: the base.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    @property
    def config(self) -> PreTrainedConfig:
        """The base's configuration."""
        return self.model.config

    @property
    def generation_config(self) -> GenerationConfig:
        """The base's settings of generation."""
        return self.model.generation_config

    @generation_config.setter
    def generation_config(self, value: GenerationConfig) -> None:
        self.model.generation_config = value

    @property
    @abstractmethod
    def virtual_tokens(self) -> int:
        """How many positions of the context the longest prompt takes."""

    @abstractmethod
    def select(self, input_ids: Int[Tensor, "b t"], attention_mask: Int[Tensor, "b t"] | None = None) -> Choice:
        """Choose a prompt for each row from this text alone; `forward` takes the answer as its `selection`."""

    @abstractmethod
    def forward(
        self,
        input_ids: Int[Tensor, "b t"],
        attention_mask: Int[Tensor, "b t"] | None = None,
        selection: Choice | None = None,
        **options: Any,
    ) -> Any:
        """Run each row behind its prompt and return the model's output; its logits are those of the text, in place.

        Args:
            attention_mask: 1 on tokens, 0 on pads; without one, all are tokens.
            selection: what `select` returned; without one, the prompt is chosen from the whole row.
        """

    @abstractmethod
    def generate(
        self, input_ids: Int[Tensor, "b t"], attention_mask: Int[Tensor, "b t"] | None = None, **options: Any
    ) -> Int[Tensor, "rows t_new"]:
        """Continue each row; takes the options of transformers' `generate` and returns ids of text and continuation.

        Args:
            attention_mask: 1 on tokens, 0 on pads; without one, all are tokens.
        """


class SoftPrompt(Prompted):
    """The active prompt of a `PeftModel`, as it is now; a later training step does not reach it."""

    def __init__(self, model: PeftModel) -> None:
        """Compute the prompt's keys and values, or where the base cannot use them its vectors.

        Raises:
            NotSupportedError: a kind of prompt, or a base, for which this would not be exact.
        """
        refuse_soft_prompt(model)
        super().__init__(model.get_base_model())
        self._front = _in_rows(model) if cache_refusal(self.model) else _in_cache(model)

    @property
    def virtual_tokens(self) -> int:
        """The length of the prompt."""
        return self._front.slots

    def select(self, input_ids: Int[Tensor, "b t"], attention_mask: Int[Tensor, "b t"] | None = None) -> Choice:
        """There is one prompt."""
        return Choice(input_ids.new_zeros(len(input_ids)))

    def forward(
        self,
        input_ids: Int[Tensor, "b t"],
        attention_mask: Int[Tensor, "b t"] | None = None,
        selection: Choice | None = None,
        **options: Any,
    ) -> Any:
        """Run each row behind the prompt; see `Prompted.forward`."""
        chosen = self.select(input_ids).selection
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if isinstance(self._front, PromptRows):
            return self._front.run(chosen, input_ids, mask, **options)
        return run_prompted(self.model, self._front, chosen, input_ids, mask, **options)[0]

    def generate(
        self, input_ids: Int[Tensor, "b t"], attention_mask: Int[Tensor, "b t"] | None = None, **options: Any
    ) -> Int[Tensor, "rows t_new"]:
        """Continue each row behind the prompt; see `Prompted.generate`."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        ids, mask = align_left(input_ids, mask)
        chosen = self.select(ids).selection
        if isinstance(self._front, PromptRows):
            return self._front.generate(chosen, ids, mask, **options)
        return generate_prompted(self.model, self._front, chosen, ids, mask, **options)


def refuse_soft_prompt(model: nn.Module) -> None:
    """Raise `NotSupportedError` if `model` is a `PeftModel` whose active soft prompt cannot generate exactly."""
    if not has_soft_prompt(model):
        return
    kind = model.active_peft_config.peft_type
    if kind not in (*VECTORS, PeftType.PREFIX_TUNING):
        raise NotSupportedError(
            f"generation with a soft prompt of kind {str(kind.value).lower()}",
            wanted="prompt tuning, P-tuning or prefix tuning: PEFT's own generation is wrong for soft prompts",
            action="evaluate its likelihood only, without generation",
        )
    if kind == PeftType.PREFIX_TUNING:  # is keys and values, and no vectors
        require_cache(model.get_base_model())
    require_prompt(model.get_base_model())


def has_soft_prompt(model: nn.Module) -> bool:
    """Whether `model` is a `PeftModel` whose active adapter is a prompt or a prefix."""
    return isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning


@torch.no_grad()
def _in_rows(model: PeftModel) -> PromptRows:
    rows = PromptRows(model.get_base_model(), [model.get_prompt(batch_size=1)[0].float()])
    prove_rows(rows)
    return rows


def _in_cache(model: PeftModel) -> PromptStack:
    prompt = _key_values(model)
    prove(model.get_base_model(), prompt)
    return PromptStack([prompt])


@torch.no_grad()
def _key_values(model: PeftModel) -> PromptKeyValues:
    """Return the keys and values of the active prompt: computed from vectors, or learned as they are (prefix)."""
    base = model.get_base_model()
    made = model.get_prompt(batch_size=1)
    if model.active_peft_config.peft_type in VECTORS:
        return encode_prompt(base, made[0])
    keys, values = ([one.to(base.device, base.dtype) for one in part] for part in layers_of(made))
    return PromptKeyValues(tuple(keys), tuple(values))


def virtual_tokens(model: nn.Module) -> int:
    """Return how many positions of its context a model gives to a soft prompt; 0 without one."""
    if isinstance(model, Prompted):
        return model.virtual_tokens
    return int(model.active_peft_config.num_virtual_tokens) if has_soft_prompt(model) else 0
