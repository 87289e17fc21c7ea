"""IDP as a method: plain text -> domains -> a soft prompt each -> a bank with a selector that is ready for use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budwood.data.documents import read_documents
from budwood.data.offsets import OffsetTokens
from budwood.data.render import Encoded, Renderer
from budwood.data.scored import scored_from
from budwood.errors import ConfigError, NotSupportedError
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.domains import SHORTEST, Division, divide
from budwood.methods.idp.files import SELECTOR, read_bank
from budwood.methods.idp.plans import parts_of, planned, prompt_settings
from budwood.methods.idp.runtime import Prompt
from budwood.methods.idp.settings import BankSettings
from budwood.methods.idp.training import PromptTraining, summed
from budwood.models import Base, empty_model, load_tokenizer
from budwood.training.folder import RunFolder
from budwood.tuning.attach import attach, count_parameters
from budwood.tuning.lesson import Learned, Order, Outline
from budwood.tuning.prompt_support import require_prompt


@dataclass(frozen=True)
class BankLesson:
    """Text as windows of tokens, divided into domains."""

    order: Order
    settings: BankSettings
    renderer: Renderer
    division: Division

    def outline(self) -> Outline:
        """Say what `learn` would do, without weights."""
        plans = planned(self.order, self.settings, self.division)
        model = empty_model(self.order.source)
        parameters = 0
        for number in range(len(self.division.domains)):
            tuner = prompt_settings(self.order, self.settings, number)
            parameters += count_parameters(attach(model, self.order.tuner, tuner, seed=0))
        steps, warmup = sum(plan.total_steps for plan in plans), plans[-1].warmup_steps
        return Outline(parameters, steps, warmup, self._rows())

    def learn(self, base: Base, folder: RunFolder, *, progress: bool, resume: bool) -> Learned:
        """Find a learning rate, train the prompts one by one, and make the selector ready."""
        earlier = self._earlier(base)
        pad, parts = self.renderer.pad_token_id, parts_of(self.order, self.settings, self.division)
        training = PromptTraining(self.order, self.settings, base, folder, pad, progress, resume, parts)
        rate, losses = training.find_rate(self.division)
        common, trained = training.train_all(self.division, rate)
        training.gather_events(common, trained)
        prompts = [*earlier, *(one.prompt for one in trained)]
        bank = self._bank(base, prompts)
        metrics = summed(common, trained) | {"learning_rate": rate, "search": losses, "rows": self._rows()}
        # The first half of a text is given, the second scored: a choice reads the first alone.
        held_out = [scored_from(row, len(row.input_ids) // 2) for row in self.division.mixture()[1]]
        alone = {prompt.name: PromptBank(base.model, [prompt]) for prompt in prompts}
        return Learned(bank, sum(one.prompt.vectors.numel() for one in trained), metrics, held_out, alone)

    def _bank(self, base: Base, prompts: Sequence[Prompt]) -> PromptBank:
        selector, fingerprint = self.settings.selector, base.source.fingerprint
        bank = PromptBank(base.model, prompts, selector=selector, fingerprint=fingerprint)
        if len(bank) > 1:
            bank.calibrate(self._contexts())
        return bank

    def _contexts(self) -> list[list[int]]:
        """Return beginnings of windows, all kinds in turn: what a selector will see."""
        rows: list[Encoded] = self.division.mixture()[0][: self.settings.contexts]
        return [row.input_ids[: max(SHORTEST // 2, len(row.input_ids) // 2)] for row in rows]

    def _earlier(self, base: Base) -> list[Prompt]:
        """Return the prompts of the bank that is to be extended."""
        place = self.settings.extend
        if place is None:
            return []
        prompts, _ = read_bank(_bank_folder(place), base.model, fingerprint=base.source.fingerprint)
        both = {one.name for one in prompts} & {one.name for one in self.division.domains}
        if both:
            raise ConfigError(
                f"{place} has a prompt {min(both)!r} already", action="rename the file that the new text is in"
            )
        return prompts

    def _rows(self) -> dict[str, Any]:
        domains = {one.name: len(one.train) for one in self.division.domains}
        return self.division.report.to_dict() | {"domains": domains}


def _bank_folder(place: Path) -> Path:
    """Return the folder of a bank, where a run may be named."""
    return place / "adapter" if (place / "adapter" / SELECTOR).is_file() else place


class BankLearner:
    """Reads plain text."""

    def read(self, order: Order) -> BankLesson:
        """Read the text and divide it.

        Raises:
            NotSupportedError: a tuner that makes no soft prompts, or a base that cannot have one in front of a row.
            DataError, ConfigError: as `domains.divide`.
        """
        settings = order.learner
        assert isinstance(settings, BankSettings)
        if order.tuner.name != "prompt":
            raise NotSupportedError(
                f"a bank of {order.tuner.name} adapters", wanted="soft prompts", action="leave out --tuner"
            )
        if order.data.evaluation_file is not None:
            raise ConfigError(
                "data.evaluation_file: the text that is held out is the end of each kind of text",
                action="leave it out; data.evaluation_fraction says how much that is",
            )
        require_prompt(empty_model(order.source))
        tokenizer = load_tokenizer(order.source)
        found = read_documents(order.files)
        tokens = OffsetTokens(tokenizer)
        division = divide(found.documents, tokens, settings, order.data, seed=order.seed, progress=order.show)
        division.report.dropped |= found.report.skipped
        division.report.remarks |= found.report.remarks
        renderer = Renderer(tokenizer, order.data.template, order.data.system)
        return BankLesson(order, settings, renderer, division)
