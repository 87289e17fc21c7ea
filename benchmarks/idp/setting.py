"""What all cells of a table share: the models, the text in domains, the texts that are scored, and how to train."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from torch import nn

from budwood.data.collate import Collator
from budwood.data.documents import read_documents
from budwood.data.offsets import OffsetTokens
from budwood.data.render import Encoded
from budwood.data.scored import scored_from
from budwood.data.settings import DataSettings
from budwood.errors import NonFiniteError
from budwood.evals.multiple_choice import Question
from budwood.methods.idp.domains import Division, divide
from budwood.methods.idp.settings import BankSettings
from budwood.models import Base
from budwood.training.folder import RunFolder, read_events
from budwood.training.settings import TrainingSettings
from budwood.training.train import train

UNSEEN = "unseen"  # the name of the domain that nothing is trained on
FACTORS = (0.3, 1.0, 3.0)  # of a tuner's own learning rate, tried for some steps each


@dataclass(frozen=True)
class Sizes:
    """What a table costs.

    Attributes:
        tokens: vectors of each prompt of the bank.
        steps: of each prompt of the bank; others take as many as the bank in all.
        batch: windows a step.
        search_steps: steps of each trial of a learning rate.
        window: tokens of a window at most; the first half is given, the second scored.
        held_out: share of each domain that is scored, its end.
        scored: texts that are scored at most.
    """

    tokens: int = 48
    steps: int = 120
    batch: int = 4
    search_steps: int = 20
    window: int = 64
    held_out: float = 0.15
    scored: int = 120


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything in memory.

    Attributes:
        compressed, uncompressed: frozen.
        division: domains; what is held out of them is scored, and no training evaluates on it.
        texts: what is scored, first halves given.
        domains: the domain of each of those.
        questions: multiple choice, or none.
        work: where trained prompts are kept.
    """

    compressed: Base
    uncompressed: Base
    division: Division
    texts: tuple[Encoded, ...]
    domains: tuple[str, ...]
    questions: tuple[Question, ...]
    sizes: Sizes
    work: Path
    _rates: dict[str, float] = field(default_factory=dict, init=False)

    @classmethod
    def read(
        cls,
        bases: tuple[Base, Base],
        paths: Sequence[Path],
        questions: Sequence[Question],
        sizes: Sizes,
        work: Path,
        unseen: Path | None = None,
    ) -> Setting:
        """Read the text and divide it.

        Args:
            bases: the compressed model and the uncompressed one.
            unseen: text of a domain that nothing is trained on, scored apart.
        """
        data = DataSettings(evaluation_fraction=sizes.held_out, evaluation_rows_max=sizes.scored)
        documents = read_documents(paths).documents
        tokens = OffsetTokens(bases[0].tokenizer)
        settings = BankSettings(window=max(32, sizes.window))
        division = divide(documents, tokens, settings, data, seed=0)
        pairs = [(row, domain.name) for domain in division.domains for row in domain.held_out]
        if unseen is not None:
            whole = settings.model_copy(update={"divide": "clusters", "prompts": 1})
            apart = divide(read_documents([unseen]).documents, tokens, whole, data, seed=0)
            pairs += [(row, UNSEEN) for row in apart.domains[0].held_out[: sizes.scored // len(division.domains)]]
        texts = tuple(scored_from(row, len(row.input_ids) // 2) for row, _ in pairs)
        names = tuple(name for _, name in pairs)
        return cls(*bases, division, texts, names, tuple(questions), sizes, work)

    @property
    def mixture(self) -> list[Encoded]:
        """All training windows, the domains in turn."""
        return self.division.mixture()[0]

    @property
    def total_steps(self) -> int:
        """The steps that the bank takes in all."""
        return self.sizes.steps * len(self.division.domains)

    @property
    def tokens_a_cell(self) -> int:
        """About how many tokens a trained system reads in training, the trials of its learning rate included."""
        mean = fmean(len(row.input_ids) for row in self.mixture)
        steps = self.total_steps + len(FACTORS) * self.sizes.search_steps
        return round(steps * self.sizes.batch * mean)

    @property
    def name(self) -> str:
        """A digest of all that decides the figures but system and seed; cells of other tables never compare."""
        rows = [row.input_ids for row in (*self.mixture, *self.texts)]
        questions = [(one.text, one.choices, one.answer) for one in self.questions]
        bases = [(one.source.fingerprint, str(one.model.dtype)) for one in (self.compressed, self.uncompressed)]
        whole = json.dumps([bases, rows, questions, vars(self.sizes)])
        return hashlib.sha256(whole.encode()).hexdigest()[:10]

    def settings(self, rate: float, steps: int) -> TrainingSettings:
        """Return the settings of one training."""
        return TrainingSettings(
            max_steps=steps, batch_size=self.sizes.batch, learning_rate=rate, schedule="cosine", final_fraction=0.1,
            save_every=steps, cache_prefix=False,
        )  # fmt: skip

    def learn(self, model: nn.Module, rows: Sequence[Encoded], rate: float, steps: int, seed: int) -> list[float]:
        """Train a model, without looking at the scored texts, and return the loss of each step."""
        pad = self.compressed.tokenizer.pad_token_id
        with tempfile.TemporaryDirectory() as place:
            folder = RunFolder(place)
            settings = self.settings(rate, steps)
            train(model, rows, [], Collator(pad), settings, folder, seed=seed, progress=False)
            return [event["loss"] for event in read_events(place) if event.get("loss") is not None]

    def best_rate(self, name: str, make: Callable[[int], nn.Module], around: float) -> float:
        """Return the learning rate with the lowest loss in the last quarter of a short trial on the mixture.

        Args:
            name: of the system; its rate is searched once and serves all seeds.
            make: returns a fresh model for a seed.
            around: the tuner's own learning rate.
        """
        if name not in self._rates:
            losses = {factor * around: self._trial(make, factor * around) for factor in FACTORS}
            self._rates[name] = min(losses, key=lambda rate: losses[rate])
        return self._rates[name]

    def _trial(self, make: Callable[[int], nn.Module], rate: float) -> float:
        steps = self.sizes.search_steps
        try:
            losses = self.learn(make(0), self.mixture, rate, steps, 0)
        except NonFiniteError:
            return math.inf
        return fmean(losses[-math.ceil(steps / 4) :])


def without_held_out(division: Division) -> Division:
    """Return the division with nothing to evaluate on while training."""
    return Division(tuple(replace(one, held_out=[]) for one in division.domains), division.report)
