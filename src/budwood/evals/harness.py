"""Any model of budwood, a bank of soft prompts included, as a model of lm-eval (EleutherAI's evaluation harness).

    import lm_eval
    model = lm_eval_model(loaded.model, loaded.renderer)
    lm_eval.simple_evaluate(model=model, tasks=["arc_easy"])

A bank chooses its prompt once a context, from the context alone, so all choices of a question are scored behind one
prompt. Rolling likelihood scores every token of a text; a bank has nothing left to choose by and refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from budwood.data.problems import Origin
from budwood.data.render import UNTRAINED, Encoded, Renderer
from budwood.data.tokens import TokenIds
from budwood.errors import DataError, NotSupportedError
from budwood.evals._running import BatchSize, context_length
from budwood.evals.generation import Sampling, generate
from budwood.evals.likelihood import likelihoods, select_prompts
from budwood.tuning.soft_prompts import Prompted, refuse_soft_prompt

ROLLING = 1024  # tokens of a window where the model names no length
NEW_TOKENS = 256  # of an answer, where the task does not say
_ORIGIN = Origin("lm-eval")


def lm_eval_model(model: nn.Module, renderer: Renderer, *, batch_size: BatchSize = "auto") -> Any:
    """Return `model` as lm-eval takes it.

    Args:
        model: a causal language model, bare, a `PeftModel` or `Prompted`.
        renderer: of its tokenizer; gives the tokens that end an answer.
        batch_size: rows a batch, or "auto".

    Raises:
        NotSupportedError: lm-eval is not installed, or the base cannot generate behind its soft prompt.
    """
    try:
        from lm_eval.api.model import LM
    except ImportError as error:
        raise NotSupportedError("lm-eval is not installed", action="pip install 'budwood[lm-eval]'") from error
    refuse_soft_prompt(model)
    return type("BudwoodLM", (_Answers, LM), {})(model, renderer, batch_size)


class _Answers:
    """What lm-eval asks of a model; mixed into its class `LM`."""

    def __init__(self, model: nn.Module, renderer: Renderer, batch_size: BatchSize) -> None:
        super().__init__()
        self._model, self._renderer, self._batch_size = model, renderer, batch_size
        self._tokens = TokenIds(renderer.tokenizer)
        self._room = context_length(model)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return for each (context, continuation) the log-likelihood in nats, and whether it is greedy."""
        rows = [self._pair(*request.args) for request in requests]
        found = likelihoods(
            self._model, rows, batch_size=self._batch_size, selections=self._selections(requests, rows)
        )
        return [(-one.nll, one.exact) for one in found]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the log-likelihood of each whole text, in windows side by side."""
        if isinstance(self._model, Prompted):
            raise NotSupportedError(
                "the likelihood of a whole text with a bank of prompts: nothing is given to choose by, all is scored",
                action="measure it with budwood.evals.perplexity, which gives the beginning of each window",
            )
        windows = [list(self._windows(request.args[0])) for request in requests]
        found = iter(likelihoods(self._model, [row for of in windows for row in of], batch_size=self._batch_size))
        return [-sum(next(found).nll for _ in of) for of in windows]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return what the model writes after each context, up to the first stop text."""
        return [self._written(*request.args) for request in requests]

    def _pair(self, context: str, continuation: str) -> Encoded:
        """Return the tokens of both, the continuation's with labels; what is too long loses its beginning."""
        given = self._tokens.encode([context])[0] if context else []
        whole = self._tokens.encode([context + continuation])[0]
        if not given:
            given = self._tokens.beginning or self._end()
            whole = whole if whole[: len(given)] == given else given + whole
        if whole[: len(given)] != given:  # a token reaches over the border: the two are tokenised apart
            whole = given + self._tokens.continuation(continuation)
        labels = [UNTRAINED] * len(given) + whole[len(given) :]
        kept = slice(-self._room if self._room else None, None)
        weights = [float(label != UNTRAINED) for label in labels]
        return Encoded(whole[kept], labels[kept], weights[kept], _ORIGIN, 0)

    def _selections(self, requests: Sequence[Any], rows: Sequence[Encoded]) -> list[int] | None:
        """Let a bank choose once for each context that occurs."""
        if not isinstance(self._model, Prompted):
            return None
        first = {request.args[0]: row for request, row in zip(reversed(requests), reversed(rows), strict=True)}
        numbers = select_prompts(self._model, list(first.values()), batch_size=self._batch_size)
        chosen = dict(zip(first, numbers.tolist(), strict=True))
        return [chosen[request.args[0]] for request in requests]

    def _windows(self, text: str) -> Iterator[Encoded]:
        ids = self._tokens.encode([text])[0]
        start = self._tokens.beginning
        before, ids = (start or self._end())[-1], ids[len(start) :]
        length = (self._room or ROLLING + 1) - 1
        for at in range(0, len(ids), length):
            part = ids[at : at + length]
            yield Encoded([before, *part], [UNTRAINED, *part], [0.0] + [1.0] * len(part), _ORIGIN, at)
            before = part[-1]

    def _written(self, context: str, options: dict[str, Any]) -> str:
        stops = options.get("until") or []
        stops = [stops] if isinstance(stops, str) else list(stops)
        limit = int(options.get("max_gen_toks", NEW_TOKENS))
        temperature = float(options.get("temperature") or 0) if options.get("do_sample") else 0.0
        prompt = self._tokens.encode([context])[0] or self._end()
        if self._room:
            prompt = prompt[-max(1, self._room - limit) :]
        sampling = Sampling(temperature) if temperature > 0 else None
        (made,) = generate(self._model, [prompt], self._renderer, max_new_tokens=limit, sampling=sampling)
        return made.text[: min((at for stop in stops if (at := made.text.find(stop)) >= 0), default=len(made.text))]

    def _end(self) -> list[int]:
        """Return a token to begin with, where the tokenizer has no beginning."""
        if not self._renderer.end_token_ids:
            raise DataError("an empty context, and a tokenizer with no token to begin with", action="give a context")
        return [min(self._renderer.end_token_ids)]
