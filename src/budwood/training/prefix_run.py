"""Whether a run uses the frozen-prefix cache, and the cache checked and attached to its model."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator

import torch
from accelerate.utils import send_to_device
from torch import nn
from transformers import TrainingArguments

from budwood.errors import NotSupportedError, StorageError
from budwood.training import randomness
from budwood.training.blocks import find_blocks, find_cut, mode, run_below
from budwood.training.feed import Feed
from budwood.training.folder import RunFolder
from budwood.training.loss import Batch, language_model
from budwood.training.plan import Plan
from budwood.training.prefix_cache import PrefixCache
from budwood.training.settings import TrainingSettings

log = logging.getLogger(__name__)

# How far target logits may differ, relative to the largest. Rows are used in batches of another shape than those they
# are stored from, which changes in what order a product is summed: on SmolLM2-135M, cut at 24 of 30 layers, by up to
# 9e-7 in fp32 and 1.7e-2 in bf16; in a batch of the same shape by nothing.
TOLERANCE, TOLERANCE_BF16 = 1e-5, 4e-2


def refusal(model: nn.Module, settings: TrainingSettings) -> str | None:
    """Return why the layers below the lowest trained one cannot be computed once for each row; None if they can."""
    if settings.gradient_checkpointing:
        return "gradient checkpointing computes the layers a second time"
    try:
        find_cut(model)
    except NotSupportedError as error:
        return error.got
    if getattr(language_model(model).get_input_embeddings(), "neftune_noise_alpha", None):
        return "NEFTune adds noise to the embedded tokens"
    return None


def drawback(model: nn.Module, plan: Plan, batch: Batch) -> str | None:
    """Return why the cache would not be worth it, or would change what is computed; None if neither.

    Args:
        model: one that `refusal` does not refuse.
        plan: the run.
        batch: a batch of training rows, on the model's device.
    """
    core, cut = language_model(model), find_cut(model)
    depth = len(find_blocks(core)[1])
    if 2 * (depth - cut) >= depth:
        return f"the top {depth - cut} of {depth} layers are trained"
    if plan.total_steps * plan.rows_per_step < 2 * plan.rows:
        return "each row is seen once"
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with randomness.untouched():
        with mode(model, training=True):
            training, _ = run_below(core, cut, inputs)
        with mode(model, training=False):
            evaluating, _ = run_below(core, cut, inputs)
    return None if torch.equal(training, evaluating) else "there is dropout in the frozen layers"


@contextlib.contextmanager
def prefix_cached(
    model: nn.Module, feed: Feed, plan: Plan, folder: RunFolder, arguments: TrainingArguments
) -> Iterator[PrefixCache | None]:
    """Attach a cache to `model` where the settings want one and it is possible; yield it.

    It lies in the run folder until training is done; an interrupted run keeps it. Where a cache that was asked for is
    not possible, or a batch computed with it is not the same, training goes on without it and says so.
    """
    wanted = plan.settings.cache_prefix
    place = folder.path / "prefix_cache"
    cache = _make(model, feed, plan, folder, arguments) if wanted else None
    with cache.attached(model) if cache else contextlib.nullcontext():
        yield cache
    if wanted and arguments.process_index == 0:
        shutil.rmtree(place, ignore_errors=True)


def _make(
    model: nn.Module, feed: Feed, plan: Plan, folder: RunFolder, arguments: TrainingArguments
) -> PrefixCache | None:
    """Return a cache of all rows whose results on one batch are those without it."""
    asked, size = plan.settings.cache_prefix is True, plan.settings.batch_size
    first = arguments.main_process_first() if arguments.world_size > 1 else contextlib.nullcontext()
    level = logging.WARNING if asked else logging.DEBUG
    try:
        reason = refusal(model, plan.settings)
        if reason is None:
            batch = send_to_device(feed.collate(list(feed.train[:size])), next(model.parameters()).device)
            reason = None if asked else drawback(model, plan, batch)
        if reason is None:
            level, rows = logging.WARNING, [*feed.train, *feed.evaluation, *feed.probed]
            with first:
                cache = PrefixCache.build(model, rows, feed.collate, folder.path / "prefix_cache", batch_size=size)
            _require_same(cache, model, batch)
            return cache
    except (NotSupportedError, StorageError) as error:
        reason = error.got
    log.log(level, "no cache of the frozen layers: %s", reason)
    return None


def _require_same(cache: PrefixCache, model: nn.Module, batch: Batch) -> None:
    """Refuse a cache that changes the logits of a batch.

    Raises:
        NotSupportedError: by how much they differ.
    """
    found = cache.deviation(model, batch)
    allowed = TOLERANCE_BF16 if language_model(model).dtype == torch.bfloat16 else TOLERANCE
    if not found <= allowed:
        raise NotSupportedError(f"logits differ by {found:.1g} of the largest", wanted=f"at most {allowed:.1g}")
