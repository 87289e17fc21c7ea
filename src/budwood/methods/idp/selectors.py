"""How a bank chooses: one protocol, three selectors, each named for what it reads.

| name | reads | passes over the text | needs |
| --- | --- | --- | --- |
| attention | how much the text attends to each prompt, as in the paper | 1, or a part of one | unlabelled texts |
| likelihood | how likely the text is behind each prompt | m, the winner's is kept | nothing |
| router | a hidden state of the base without any prompt | a part of one | unlabelled texts |

All read the given text only. In multiple choice that is the question, so that all choices are scored behind one
prompt; for a perplexity it is the text before the part that is scored.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import one_hot

from budwood.errors import ConfigError, DataError, NonFiniteError, UsageError, nearest
from budwood.methods.idp.attention_rows import attention_row_scores
from budwood.methods.idp.attention_scores import attention_scores
from budwood.methods.idp.head_weights import HeadWeights, fit_heads
from budwood.methods.idp.likelihood import likelihood_pass
from budwood.methods.idp.router import Router, fit_router, pooled_states
from budwood.methods.idp.runtime import Runtime
from budwood.methods.idp.support import chosen_layers, reads_together
from budwood.tuning.soft_prompts import Choice

log = logging.getLogger(__name__)

FEW_CONTEXTS = 60  # what mean and spread of a score were estimated from where calibration was measured
FITTED_DEPTH = 2 / 3  # of the layers: what lies above adds nothing where it was measured
ROUNDING = 1e-5  # of the largest score of a row
Contexts = Sequence[tuple[Int[Tensor, "b t"], Int[Tensor, "b t"]]]  # batches of ids and masks


class Selector(BaseModel, ABC):
    """Chooses a prompt for each row. Its fields are what `selector.json` keeps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @abstractmethod
    def choose(self, runtime: Runtime, input_ids: Int[Tensor, "b t"], mask: Int[Tensor, "b t"]) -> Choice:
        """Return scores and choice for each row; the smallest number wins a tie."""

    def calibrated(self, runtime: Runtime, contexts: Contexts, labels: Int[Tensor, " c"] | None = None) -> Selector:
        """Return the same selector, made ready with texts of the expected mix. Most need no labels."""
        return self


def best(scores: Float[Tensor, "b m"]) -> Int[Tensor, " b"]:
    """Return the number of each row's largest score; of scores that only rounding sets apart, the smallest number.

    Equal prompts get scores that differ in the last digits, by their place; the choice must not hang on that.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    if not torch.isfinite(scores).all():
        raise NonFiniteError(
            "a prompt's score is NaN or infinite", action="check the base's precision and the prompts"
        )
    slack = ROUNDING * scores.abs().amax(dim=1, keepdim=True)
    return (scores >= scores.amax(dim=1, keepdim=True) - slack).int().argmax(dim=1)  # the first of the largest


class Spread(BaseModel):
    """Mean and standard deviation of each layer's score of each prompt, (layers, m), over calibration texts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mean: list[list[float]]
    deviation: list[list[float]]
    contexts: int

    @classmethod
    def of(cls, raw: Float[Tensor, "c l m"]) -> Spread:
        """Return the spread of scores of c texts."""
        mean = raw.mean(dim=0)
        deviation = raw.std(dim=0).maximum(ROUNDING * mean.abs())  # a score that never moves must not be blown up
        return cls(mean=mean.tolist(), deviation=deviation.tolist(), contexts=len(raw))

    @property
    def prompts(self) -> int:
        """The number of prompts m."""
        return len(self.mean[0])

    def standardise(self, raw: Float[Tensor, "b l m"]) -> Float[Tensor, "b l m"]:
        """Return how many deviations each score is above its mean."""
        mean, deviation = (torch.tensor(part, device=raw.device) for part in (self.mean, self.deviation))
        return (raw - mean) / deviation


class AttentionSelector(Selector):
    """Chooses the prompt that the text attends to most.

    Raw scores send nearly every text to one prompt: a prompt's own level (its length, how strong a sink its first
    vector is) outweighs what the text adds. "z" takes that level off, prompt by prompt and layer by layer, and
    averages over the layers. Most heads still look at something else than the topic; "fit" weights each head by what
    it says of the likelihood (`head_weights`). The paper's form is `AttentionSelector.paper()`.
    """

    name: Literal["attention"] = "attention"
    layers: tuple[int, ...] | None = Field(
        default=None, description="layers to score; none: all, with fit those below two thirds of the depth"
    )
    normalise: Literal["fit", "z", "mean", "mass"] = Field(
        default="fit", description="fit: weighted heads; z: standardised means; mean or mass: raw"
    )
    skip_first: int = Field(default=1, ge=0, description="vectors at the start of each prompt that do not count")
    spread: Spread | None = Field(default=None, description="what z standardises with; set by calibration")
    heads: HeadWeights | None = Field(default=None, description="the weights of fit; set by calibration")

    @classmethod
    def paper(cls) -> AttentionSelector:
        """Return the form that the paper describes: raw means, here at layer 0, where one pass is exact."""
        return cls(layers=(0,), normalise="mean", skip_first=0)

    def choose(self, runtime: Runtime, input_ids: Int[Tensor, "b t"], mask: Int[Tensor, "b t"]) -> Choice:
        """Score by attention; see `attention_scores`, and `attention_rows` where one pass cannot hold all prompts."""
        self._require_calibration(len(runtime))
        raw = self._raw(runtime, input_ids, mask)
        if self.heads is not None:
            scores = self.heads.scores(raw)
        else:
            scores = (raw if self.spread is None else self.spread.standardise(raw)).mean(dim=1)
        return Choice(best(scores), scores)

    def _raw(self, runtime: Runtime, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return what the heads attend, (b, l, h, m) for "fit" and their mean, (b, l, m), for the others."""
        layers = chosen_layers(self.layers, runtime.model)
        fit = self.normalise == "fit"
        if fit and self.layers is None:
            layers = layers[: math.ceil(FITTED_DEPTH * len(layers))]
        per_key = self.normalise != "mass"
        score = attention_scores if reads_together(runtime.model) else attention_row_scores
        return score(runtime, input_ids, mask, layers, per_key=per_key, skip_first=self.skip_first, by_head=fit)

    def _require_calibration(self, prompts: int) -> None:
        if self.normalise in ("mean", "mass"):
            return
        known = self.heads if self.normalise == "fit" else self.spread
        if known is None or known.prompts != prompts:
            raise ConfigError(
                f"the attention selector has no calibration for {prompts} prompts "
                f"({'none' if known is None else f'one for {known.prompts} prompts'})",
                wanted="what heads attend to each prompt over texts of the expected mix",
                action=f"call bank.calibrate(contexts) with {FEW_CONTEXTS} texts or more; no labels are needed",
            )

    def calibrated(self, runtime: Runtime, contexts: Contexts, labels: Int[Tensor, " c"] | None = None) -> Selector:
        """Return the selector with what its normalisation needs, from `contexts`."""
        if self.normalise in ("mean", "mass"):
            return self
        raw = torch.cat([self._raw(runtime, ids, mask) for ids, mask in contexts])
        if len(raw) < 2:
            raise DataError(f"{len(raw)} calibration texts", wanted=f"2 at least, {FEW_CONTEXTS} for good figures")
        if len(raw) < FEW_CONTEXTS:
            log.warning("calibrated on %d texts; %d or more give steadier figures", len(raw), FEW_CONTEXTS)
        if self.normalise == "z":
            return self.model_copy(update={"spread": Spread.of(raw)})
        return self.model_copy(update={"heads": fit_heads(raw, _likelihood(runtime, contexts))})


class LikelihoodSelector(Selector):
    """Chooses the prompt behind which the text is most likely: the lowest mean NLL of its tokens.

    The best of the three where it was measured, and it needs no calibration. It is not the paper's.
    """

    name: Literal["likelihood"] = "likelihood"
    tokens: int | None = Field(default=None, ge=1, description="only so many tokens at the start; none: all, and kept")

    def choose(self, runtime: Runtime, input_ids: Int[Tensor, "b t"], mask: Int[Tensor, "b t"]) -> Choice:
        """Score by likelihood; see `likelihood_pass`."""
        nll, cache = likelihood_pass(runtime, input_ids, mask, tokens=self.tokens)
        context = None if cache is None else (cache, input_ids, mask)
        return Choice(best(-nll), -nll, context)


class RouterSelector(Selector):
    """Chooses from a hidden state of the base, with a linear map fitted to the likelihood.

    The likelihood labels texts offline; at run time a part of one pass of the base without prompts does. With `labels`
    at calibration it is fitted to those instead.
    """

    name: Literal["router"] = "router"
    depth: float = Field(default=0.5, ge=0, lt=1, description="where the state is read: share of the layers below it")
    router: Router | None = Field(default=None, description="the map; set by calibration")

    def choose(self, runtime: Runtime, input_ids: Int[Tensor, "b t"], mask: Int[Tensor, "b t"]) -> Choice:
        """Score by the fitted map of the pooled hidden state."""
        if self.router is None or self.router.prompts != len(runtime):
            raise ConfigError(
                f"the router is not fitted for {len(runtime)} prompts",
                action="call bank.calibrate(contexts) with texts of the expected mix; no labels are needed",
            )
        scores = self.router.scores(pooled_states(runtime.model, input_ids, mask, self.depth))
        return Choice(best(scores), scores)

    def calibrated(self, runtime: Runtime, contexts: Contexts, labels: Int[Tensor, " c"] | None = None) -> Selector:
        """Return the selector with a map fitted to `labels`, or without them to the likelihood of each context."""
        states = torch.cat([pooled_states(runtime.model, ids, mask, self.depth) for ids, mask in contexts])
        if labels is None:
            targets = _likelihood(runtime, contexts)
        else:
            targets = one_hot(labels.to(states.device), len(runtime)).float()
        return self.model_copy(update={"router": fit_router(states, targets)})


def _likelihood(runtime: Runtime, contexts: Contexts) -> Float[Tensor, "c m"]:
    """Return how likely each context is behind each prompt, in nats a token."""
    return -torch.cat([likelihood_pass(runtime, *one, keep=False)[0] for one in contexts])


SELECTORS: dict[str, Selector] = {
    "attention": AttentionSelector(),
    "likelihood": LikelihoodSelector(),
    "paper": AttentionSelector.paper(),
    "router": RouterSelector(),
}


def find_selector(selector: str | Selector) -> Selector:
    """Return a selector by name, or the one that is given.

    Raises:
        UsageError: an unknown name.
    """
    if isinstance(selector, Selector):
        return selector
    if selector not in SELECTORS:
        raise UsageError(f"there is no selector called {selector!r}", action=nearest(selector, SELECTORS))
    return SELECTORS[selector]
