"""`PromptBank`: several soft prompts on one base, and for each input the choice of one (arXiv 2310.00867).

    bank = PromptBank.from_adapters(model, ["runs/wordnet", "runs/bible", "runs/jargon"])
    chosen = bank.select(input_ids, attention_mask)             # or leave it out: each call chooses for itself
    written = bank.generate(input_ids, attention_mask, selection=chosen, max_new_tokens=64)
    print(bank.histogram())

Rows of one batch may get different prompts, of different lengths, in one cache; each computes what its prompt alone
would give. The choice is made once, from the given text, and holds for everything that is generated after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from budwood.errors import AdapterError, DataError, UsageError
from budwood.methods.idp.files import AnySelector, BankFacts, read_bank, read_prompt, write_bank
from budwood.methods.idp.runtime import Prompt, Runtime
from budwood.methods.idp.selectors import Selector, find_selector
from budwood.methods.idp.tally import Histogram, Tally
from budwood.tuning.prompt_cache import align_left
from budwood.tuning.soft_prompts import Choice, Prompted

Selection: TypeAlias = Choice | Tensor | Sequence[int]


class PromptBank(Prompted):
    """Soft prompts, their base and a selector.

    Args:
        model: the base, in evaluation mode; its weights are not changed.
        prompts: at least one, with names of their own.
        selector: "likelihood", "attention", "router" or "paper", or a selector with settings of its own.
        fingerprint: of the base's weights, kept with a saved bank.

    Raises:
        UsageError: no prompts, an unknown selector, or a name that occurs twice.
        NotSupportedError: a base on which prompts would not be exact.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Prompt],
        *,
        selector: str | AnySelector = "likelihood",
        fingerprint: str | None = None,
    ) -> None:
        super().__init__(model)
        _check_names([prompt.name for prompt in prompts])
        self.selector: Selector = find_selector(selector)
        self.fingerprint = fingerprint
        self._runtime = Runtime(model, prompts)
        self._tally = Tally({prompt.name: len(prompt.vectors) for prompt in prompts})

    @classmethod
    def from_adapters(
        cls,
        model: PreTrainedModel,
        folders: Sequence[str | Path],
        *,
        selector: str | AnySelector = "likelihood",
        fingerprint: str | None = None,
        force: bool = False,
    ) -> PromptBank:
        """Make a bank of PEFT prompt-tuning folders, or of runs that have one; names are those of the folders.

        Args:
            force: accept prompts that were made on other weights.

        Raises:
            AdapterError, BaseMismatchError, NotSupportedError: as `read_prompt`; the message names the prompt.
        """
        prompts = [read_prompt(Path(one), model, fingerprint=fingerprint, force=force) for one in folders]
        return cls(model, prompts, selector=selector, fingerprint=fingerprint)

    @classmethod
    def load(
        cls, model: PreTrainedModel, folder: str | Path, *, fingerprint: str | None = None, force: bool = False
    ) -> PromptBank:
        """Read what `save` wrote.

        Raises:
            AdapterError, BaseMismatchError, NotSupportedError: as `read_prompt`; the message names the prompt.
        """
        prompts, facts = read_bank(Path(folder), model, fingerprint=fingerprint, force=force)
        return cls(model, prompts, selector=facts.selector, fingerprint=facts.fingerprint or fingerprint)

    def save(self, folder: str | Path, *, replace: bool = False) -> None:
        """Write the bank: PEFT folders and `selector.json`, whole or not at all."""
        facts = BankFacts.model_validate(
            {
                "prompts": self.names,
                "base": self.model.name_or_path,
                "fingerprint": self.fingerprint,
                "selector": self.selector.model_dump(),
            }
        )
        write_bank(Path(folder), self.prompts, facts, replace=replace)

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts, in order."""
        return self._runtime.prompts

    @property
    def names(self) -> list[str]:
        """The prompts' names, in order."""
        return [prompt.name for prompt in self.prompts]

    @property
    def virtual_tokens(self) -> int:
        """The length of the longest prompt."""
        return self._runtime.slots

    def __len__(self) -> int:
        return len(self._runtime)

    def add(self, folder: str | Path, *, name: str = "", force: bool = False) -> None:
        """Add a prompt at the end. A calibrated selector has to be calibrated again.

        Raises:
            UsageError: the name is taken.
            AdapterError, BaseMismatchError, NotSupportedError: as `read_prompt`.
        """
        prompt = read_prompt(Path(folder), self.model, name=name, fingerprint=self.fingerprint, force=force)
        _check_names([*self.names, prompt.name])
        self._runtime = self._runtime.extended(prompt)
        self._tally.add_prompt(prompt.name, len(prompt.vectors))

    def calibrate(
        self, contexts: Sequence[Sequence[int]], labels: Sequence[int] | None = None, *, batch_size: int = 8
    ) -> None:
        """Make the selector ready with texts of the expected mix, as token ids.

        Args:
            labels: the number of the right prompt for each text; only a router uses them, and does without.
        """
        if labels is not None and len(labels) != len(contexts):
            raise DataError(f"{len(labels)} labels for {len(contexts)} texts", wanted="one for each")
        chosen = None if labels is None else self._numbers(labels)
        batches = [self._padded(contexts[i : i + batch_size]) for i in range(0, len(contexts), batch_size)]
        self.selector = self.selector.calibrated(self._runtime, batches, chosen)

    def _padded(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        longest = max(map(len, texts))
        ids = torch.tensor([[0] * (longest - len(text)) + list(text) for text in texts])
        mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
        return self._batch(ids, mask)

    def scores(
        self, input_ids: Int[Tensor, "b t"], attention_mask: Int[Tensor, "b t"] | None = None
    ) -> Float[Tensor, "b m"]:
        """Return each prompt's score for each row, larger is better. Nothing is counted."""
        found = self.selector.choose(self._runtime, *self._batch(input_ids, attention_mask)).scores
        assert found is not None
        return found

    def select(self, input_ids: Int[Tensor, "b t"], attention_mask: Int[Tensor, "b t"] | None = None) -> Choice:
        """Choose a prompt for each row, from this text alone, and count the choice.

        Args:
            attention_mask: 1 on tokens, 0 on pads, on either side.

        Raises:
            ConfigError: the selector has not been calibrated for these prompts.
            DataError: a row without tokens.
        """
        ids, mask = self._batch(input_ids, attention_mask)
        only = len(self) == 1
        choice = Choice(ids.new_zeros(len(ids))) if only else self.selector.choose(self._runtime, ids, mask)
        self._tally.count(choice.selection)
        return choice

    def forward(
        self,
        input_ids: Int[Tensor, "b t"],
        attention_mask: Int[Tensor, "b t"] | None = None,
        selection: Selection | None = None,
        **options: Any,
    ) -> Any:
        """Run each row behind its prompt and return the model's output; its logits are those of the text, in place.

        Without a `selection` each row is read to choose its prompt: give one where a part of the row is to be
        predicted, made with `select` from the part before.
        """
        choice = (
            self.select(input_ids, attention_mask) if selection is None else self._given(selection, len(input_ids))
        )
        ids = input_ids.to(self.model.device)
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask.to(ids)
        return self._runtime.run(choice.selection, ids, mask, **options)[0]

    def generate(
        self,
        input_ids: Int[Tensor, "b t"],
        attention_mask: Int[Tensor, "b t"] | None = None,
        *,
        selection: Selection | None = None,
        **options: Any,
    ) -> Int[Tensor, "rows t_new"]:
        """Continue each row behind its prompt, chosen once from the given text; see `Prompted.generate`."""
        ids, mask = self._batch(input_ids, attention_mask)
        choice = self.select(ids, mask) if selection is None else self._given(selection, len(ids))
        context = choice.context_of(ids, mask)
        return self._runtime.generate(choice.selection, ids, mask, context=context, **options)

    def histogram(self) -> Histogram:
        """Return how often each prompt was chosen since the bank was made; given selections do not count."""
        return self._tally.histogram()

    def _batch(self, input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return ids and mask on the model's device, with pads on the left."""
        ids = input_ids.to(self.model.device)
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask.to(ids)
        if not mask.any(dim=1).all():
            raise DataError("a row without tokens", wanted="at least one token in each row")
        return align_left(ids, mask)

    def _given(self, selection: Selection, rows: int) -> Choice:
        choice = selection if isinstance(selection, Choice) else Choice(self._numbers(selection))
        if len(choice.selection) != rows:
            raise UsageError(f"{len(choice.selection)} prompts were chosen for {rows} rows", wanted="one for each row")
        return choice

    def _numbers(self, selection: Tensor | Sequence[int]) -> Int[Tensor, " b"]:
        numbers = torch.as_tensor(selection, device=self.model.device).long()
        if ((numbers < 0) | (numbers >= len(self))).any():
            raise UsageError(f"prompt {numbers.tolist()} was asked for", wanted=f"numbers from 0 to {len(self) - 1}")
        return numbers


def _check_names(names: Sequence[str]) -> None:
    """Refuse no names, a name that occurs twice, and one that is no folder's name."""
    if not names:
        raise UsageError("a bank without prompts", wanted="at least one prompt-tuning folder")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two prompts are called {twice!r}", action="rename a folder, or add one with name=…")
    if odd := next((name for name in names if Path(name).name != name or name == ".."), None):
        raise AdapterError(f"{odd!r} is no name of a folder", wanted="a name without separators")
