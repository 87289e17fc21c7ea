"""What an adaptation would take and give, in figures, from shapes alone: no weight is read.

Every figure is exact but two that are marked: memory (an estimate, its formula is in the answer) and tokens (the mean
row times the rows seen). Time is stated only where a finished run on this machine has measured it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel

from budwood import peft
from budwood import recipe as recipes
from budwood._memory import (
    ADAPTER_BYTES,
    FORMULA,
    BatchShape,
    MemoryEstimate,
    activation_bytes,
    base_bytes,
    logit_bytes,
)
from budwood._prospects import prospects
from budwood._request import RECIPE
from budwood.errors import BudwoodError
from budwood.models import Site, Source, choose_device, choose_dtype, empty_model, find_sites, locate
from budwood.models.files import weight_files
from budwood.models.quantisation import LOADED_DENSE, stored_method
from budwood.recipe import Recipe
from budwood.training.attention import kept_bytes as attention_bytes
from budwood.training.environment import describe_environment
from budwood.training.folder import read_metrics, read_status
from budwood.tuning.attach import attach, count_parameters
from budwood.tuning.registry import find_tuner

MACHINE = ("cpu", "cores", "devices")  # the keys of env.json that decide the speed


@dataclass(frozen=True)
class _Shapes:
    """The base and the adapter as shapes.

    Args:
        adapted: the base with the adapter, on the meta device.
        sites: the linear layers of the base.
        parameters: of the base.
    """

    recipe: Recipe
    source: Source
    adapted: PeftModel
    sites: list[Site]
    parameters: int

    @classmethod
    def of(cls, recipe: Recipe) -> _Shapes:
        peft.register()
        source = locate(recipe.model)
        base = empty_model(source)
        sites, parameters = find_sites(base), _count(base)
        adapted = attach(base, find_tuner(recipe.tuner_name), recipe.tuner, seed=recipe.seed)
        return cls(recipe, source, adapted, sites, parameters)

    @property
    def base(self) -> PreTrainedModel:
        return self.adapted.get_base_model()

    @property
    def widened_sites(self) -> list[str]:
        """The names of the layers whose input is kept in fp32 as well: PEFT's tuners do that, ours and prompts not."""
        if self.adapted.peft_config["default"].is_prompt_learning or find_tuner(self.recipe.tuner_name).load_classes:
            return []
        return list(self.adapted.base_model.targeted_module_names)


def figures(recipe: Recipe, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `plan` says beside method and command.

    Args:
        recipe: decides base, tuner and training.
        found: what `_adapt.preview` returned; empty where there are no rows.
    """
    shapes = _Shapes.of(recipe)
    rows, trainable = found.get("rows"), found.get("trainable_params") or count_parameters(shapes.adapted)
    tokens = _tokens(shapes.recipe, rows, found["steps"]) if rows else None
    batch = _largest_batch(shapes.recipe, rows)
    return {
        "model": base_facts(shapes.source),
        "trainable_params": trainable,
        "adapter_bytes": 4 * trainable,
        "comparison": found.get("comparison"),
        "memory_mib": _memory(shapes, batch, trainable).to_dict(),
        "memory_batch": vars(batch),
        "memory_formula": FORMULA,
        "rows": rows,
        "steps": found.get("steps"),
        "warmup_steps": found.get("warmup_steps"),
        "tokens": tokens,
        "seconds": _seconds(shapes.recipe, tokens, Path(found.get("out") or "runs/any").parent),
        "exports": prospects(shapes.source, shapes.base, shapes.recipe, shapes.adapted),
        "recipe": shapes.recipe.model_dump(mode="json"),
    }


def base_facts(source: Source) -> dict[str, Any]:
    """Return what the base is: reference, class, parameters, linear layers, quantisation."""
    base = empty_model(source)
    return {
        "reference": str(source.reference),
        "class": type(base).__name__,
        "parameters": _count(base),
        "linear_layers": len(find_sites(base)),
        "quantised": source.reference.quantisation or stored_method(base.config),
    }


def _count(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _memory(shapes: _Shapes, batch: BatchShape, trainable: int) -> MemoryEstimate:
    training, quantisation = shapes.recipe.training, shapes.source.reference.quantisation
    device = choose_device(training.device)
    dtype = choose_dtype(training.dtype, device)
    stored = stored_method(shapes.base.config)
    if stored and stored not in LOADED_DENSE:
        weights = sum(file.stat().st_size for file in weight_files(shapes.source.folder, shapes.recipe.model))
    else:
        weights = base_bytes(shapes.parameters, shapes.sites, dtype, quantisation)
    kept = activation_bytes(shapes.sites, shapes.widened_sites, batch, dtype, training.gradient_checkpointing)
    pairs = attention_bytes(shapes.base, batch.rows, batch.length, device, dtype)
    config = shapes.base.config.get_text_config()
    kept += pairs // config.num_hidden_layers if training.gradient_checkpointing else pairs
    return MemoryEstimate(weights, ADAPTER_BYTES * trainable, kept, logit_bytes(batch, config.vocab_size, dtype))


def _largest_batch(recipe: Recipe, rows: Mapping[str, Any] | None) -> BatchShape:
    """Return a batch of the longest rows; without rows, of the longest that are let through, all of them trained."""
    count, longest = recipe.training.batch_size, recipe.data.max_length
    if rows is None:
        return BatchShape(count, longest, longest)
    trained = math.ceil(rows["supervised_tokens"] / max(1, rows["sequences"]))
    return BatchShape(min(count, rows["train_rows"]), rows["length_tokens"]["max"], trained)


def _tokens(recipe: Recipe, rows: Mapping[str, Any], steps: int) -> int:
    """Return about how many tokens training reads: the mean length of a sequence times the sequences seen."""
    mean = rows["tokens"] / max(1, rows["sequences"])
    train = rows["train_rows"] * rows["sequences"] / max(1, rows["kept"])
    training = recipe.training
    in_steps = steps * training.batch_size * training.accumulate
    return round(mean * (in_steps if training.max_steps else min(in_steps, training.epochs * train)))


def _seconds(recipe: Recipe, tokens: int | None, place: Path) -> dict[str, Any]:
    """Return how long training would take by the newest finished run that is like it, or that this is unknown."""
    measured = max(_like_it(recipe, place), default=None)
    if tokens is None or measured is None:
        why = (
            "no rows were given"
            if tokens is None
            else f"no finished run of this base and tuner in {place} measured it"
        )
        return {"estimate": None, "why": f"unknown: {why}"}
    _, speed, run = measured
    return {
        "estimate": round(tokens / speed),
        "why": f"{speed:,.0f} tokens a second in {run}; evaluation comes on top",
    }


def _like_it(recipe: Recipe, place: Path) -> Iterator[tuple[str, float, str]]:
    """Yield (when, tokens a second, run) of finished runs of the same base, tuner and precision on this machine."""
    here = describe_environment()
    for path in place.glob("*/metrics.json"):
        try:
            run, speed = recipes.load(path.parent / RECIPE), read_metrics(path.parent).get("tokens_per_s")
            status, there = (
                read_status(path.parent),
                json.loads((path.parent / "env.json").read_text(encoding="utf-8")),
            )
        except (BudwoodError, OSError, ValueError):
            continue  # a run of another version, or half a run
        same = (run.model, run.tuner_name, run.training.dtype) == (
            recipe.model, recipe.tuner_name, recipe.training.dtype,
        )  # fmt: skip
        if same and speed and all(there.get(key) == here[key] for key in MACHINE):
            yield str(status.get("heartbeat")), float(speed), str(path.parent)
