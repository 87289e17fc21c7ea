"""Rows in, figures out: likelihood, exact match and ROUGE-L of a model on labelled rows, with its base beside it.

Generation is the dear part, and much of it is not needed. Greedy decoding writes the first reference token for token
exactly if each of its tokens, the end token included, is the most likely one given those before. One forward pass
tells that for every row (`likelihood`), so only the rows that fail are generated: they may still match another
reference, or the same text in other tokens. In bf16 and fp16 a tie in the last digit may break either way.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn

from budwood.data.problems import or_raise
from budwood.errors import DataError, NonFiniteError
from budwood.evals._running import BatchSize, Progress, context_length
from budwood.evals.generation import generate as generate_texts
from budwood.evals.likelihood import Likelihood, likelihoods
from budwood.evals.metrics import exact_match, rouge_l
from budwood.evals.results import Comparison, EvalResult, RowRecord, compare_results, means_of, task_means
from budwood.tuning.soft_prompts import Prompted, refuse_soft_prompt

if TYPE_CHECKING:
    from peft import PeftModel

    from budwood.data.render import Encoded, Renderer
    from budwood.data.rows import Row

# The limit of a generated answer: 1.5 times the longest reference of all rows, and 8 tokens. A longer text matches
# none of them, and a model that does not stop costs no more than that.
LIMIT_FACTOR, LIMIT_MARGIN = 1.5, 8


def evaluate_rows(
    model: nn.Module,
    rows: Sequence[Row],
    renderer: Renderer,
    *,
    batch_size: BatchSize = "auto",
    generate: bool = True,
    progress: Progress | None = None,
) -> EvalResult:
    """Evaluate a model on rows.

    Args:
        model: a causal language model, bare or a `PeftModel`; nothing about it is changed.
        rows: at least one.
        renderer: of the model's tokenizer, the one it was trained with.
        batch_size: rows a batch, or "auto".
        generate: whether to find out the model's answers; without, exact match and ROUGE-L are None.
        progress: called with (what is done, rows done, rows) as it goes.

    Raises:
        DataError: no rows, a row that cannot be rendered, or none that fits the model's context.
        NonFiniteError: the likelihood of a row is NaN or infinite.
        NotSupportedError: `generate` is asked for, and the adapter is a soft prompt that this base cannot do it with.
        OutOfMemoryError: a batch did not fit.
    """
    if generate:
        refuse_soft_prompt(model)
    return _evaluate(model, _make_ready(model, rows, renderer), batch_size, generate, progress)


def with_base(
    model: PeftModel | Prompted,
    rows: Sequence[Row],
    renderer: Renderer,
    *,
    batch_size: BatchSize = "auto",
    generate: bool = True,
    base_generate: bool = True,
    progress: Progress | None = None,
) -> Comparison:
    """Evaluate an adapter and, on the same weights with the adapter disabled, its base.

    Args:
        model: the base with its adapter; nothing about it is changed.
        base_generate: whether to find out the base's answers too; they are mostly wrong and run to the limit, so
            that this is most of the time.

    The other arguments and the errors are those of `evaluate_rows`.
    """
    if generate:
        refuse_soft_prompt(model)
    ready = _make_ready(model, rows, renderer)
    adapted = _evaluate(model, ready, batch_size, generate, _named("adapted", progress))
    with base_of(model) as bare:
        base = _evaluate(bare, ready, batch_size, generate and base_generate, _named("base", progress))
    return compare_results(adapted, base)


@contextlib.contextmanager
def base_of(model: PeftModel | Prompted) -> Iterator[nn.Module]:
    """Yield a model that computes what the base alone would; `model` is as before afterwards.

    PEFT makes every active adapter trainable when it enables it again, so the flags are put back.
    """
    if isinstance(model, Prompted):
        yield model.model
        return
    if model.active_peft_config.is_prompt_learning:
        yield model.get_base_model()
        return
    trainable = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        with model.disable_adapter():
            yield model
    finally:
        for parameter, flag in trainable:
            parameter.requires_grad_(flag)


@dataclass(frozen=True)
class _Question:
    """A row made ready.

    Attributes:
        sequences: what its likelihood is computed on.
        prompt: what its answer is generated from.
        answer: the ids of the learned answer through its end token if they follow the prompt in the last sequence, so
            that the likelihood speaks of them; else None.
    """

    row: Row
    sequences: list[Encoded]
    prompt: list[int]
    answer: list[int] | None


@dataclass(frozen=True)
class _Ready:
    questions: list[_Question]
    dropped: int
    max_new_tokens: int
    renderer: Renderer


def _make_ready(model: nn.Module, rows: Sequence[Row], renderer: Renderer) -> _Ready:
    questions, context = [], context_length(model)
    for row, sequences in zip(rows, or_raise(renderer.encode_rows(rows)), strict=True):
        if context is None or all(len(one.input_ids) <= context for one in sequences):
            questions.append(_question(row, sequences, renderer))
    if not questions:
        got = f"none of {len(rows)} rows fits the model's context of {context} tokens" if rows else "no rows"
        raise DataError(got, wanted="at least one row", action="give shorter rows" if rows else "check the file")
    return _Ready(questions, len(rows) - len(questions), _limit(questions, renderer), renderer)


def _question(row: Row, sequences: list[Encoded], renderer: Renderer) -> _Question:
    prompt, last = renderer.prompt(row), sequences[-1]
    answer = last.input_ids[len(prompt) :]
    follows = last.input_ids[: len(prompt)] == prompt and last.labels[len(prompt) :] == answer
    ends = bool(answer) and answer[-1] in renderer.end_token_ids
    return _Question(row, sequences, prompt, answer if follows and ends else None)


def _limit(questions: Sequence[_Question], renderer: Renderer) -> int:
    """Return the most tokens that a generated answer may have, its end token included."""
    references = [reference for question in questions for reference in question.row.references]
    ids = renderer.tokenizer(references, add_special_tokens=False, verbose=False)["input_ids"]
    answers = [len(question.answer) for question in questions if question.answer is not None]
    return math.ceil(LIMIT_FACTOR * max([*(len(one) + 1 for one in ids), *answers])) + LIMIT_MARGIN


def _evaluate(
    model: nn.Module, ready: _Ready, batch_size: BatchSize, generate: bool, progress: Progress | None
) -> EvalResult:
    started = time.perf_counter()
    records = _score(model, ready.questions, batch_size, progress)
    generated = 0
    if generate:
        answers, generated = _answers(model, ready, records, batch_size, progress)
        records = [_judged(record, answer) for record, answer in zip(records, answers, strict=True)]
    return EvalResult(
        **means_of(records).to_dict(),
        records=tuple(records),
        by_task=task_means(records),
        dropped=ready.dropped,
        generated=generated,
        max_new_tokens=ready.max_new_tokens if generate else None,
        batch_size=batch_size,
        seconds=time.perf_counter() - started,
    )


def _score(
    model: nn.Module, questions: Sequence[_Question], batch_size: BatchSize, progress: Progress | None
) -> list[RowRecord]:
    """Return the records of all rows, without predictions."""
    sequences = [one for question in questions for one in question.sequences]
    found = iter(likelihoods(model, sequences, batch_size=batch_size, progress=progress))
    return [_scored(question.row, [next(found) for _ in question.sequences]) for question in questions]


def _scored(row: Row, parts: Sequence[Likelihood]) -> RowRecord:
    tokens, nll = sum(part.tokens for part in parts), sum(part.nll for part in parts)
    if not math.isfinite(nll):
        raise NonFiniteError(
            f"{row.origin}: the likelihood of the row is {nll}",
            wanted="finite logits",
            action="check the weights, or evaluate in float32: float16 overflows with some models",
        )
    exact = all(part.exact for part in parts)
    return RowRecord(row.origin, row.task, tokens, nll / tokens, exact, row.references)


def _answers(
    model: nn.Module, ready: _Ready, records: Sequence[RowRecord], batch_size: BatchSize, progress: Progress | None
) -> tuple[list[str], int]:
    """Return what greedy decoding writes for each row, and how many rows had to be generated for that."""
    texts = {
        i: ready.renderer.decode(question.answer)
        for i, (question, record) in enumerate(zip(ready.questions, records, strict=True))
        if record.forced_exact and question.answer is not None
    }
    unknown = [i for i in range(len(records)) if i not in texts]
    written = generate_texts(
        model,
        [ready.questions[i].prompt for i in unknown],
        ready.renderer,
        max_new_tokens=ready.max_new_tokens,
        batch_size=batch_size,
        progress=progress,
    )
    texts.update(zip(unknown, (one.text for one in written), strict=True))
    return [texts[i] for i in range(len(records))], len(unknown)


def _judged(record: RowRecord, answer: str) -> RowRecord:
    match, overlap = exact_match(answer, record.references), rouge_l(answer, record.references)
    return replace(record, prediction=answer, exact_match=match, rouge_l=overlap)


def _named(name: str, progress: Progress | None) -> Progress | None:
    return None if progress is None else lambda what, done, total: progress(f"{name} {what}", done, total)
