"""What an adaptation would take and give, before any weight is read; and which method suits what the user has.

Every figure is exact but two that are marked: memory (an estimate, its formula is in the answer) and tokens (the mean
row times the rows seen). Time is stated only where a finished run on this machine has measured it.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel

from budwood import _adapt, peft
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
from budwood.errors import BudwoodError
from budwood.evidence import Evidence, Instruction
from budwood.models import Site, Source, choose_device, choose_dtype, empty_model, find_sites, locate
from budwood.models.files import weight_files
from budwood.recipe import Recipe
from budwood.training.environment import describe_environment
from budwood.training.folder import read_metrics, read_status
from budwood.tuning.attach import attach, count_parameters
from budwood.tuning.registry import find_method, find_tuner, methods

MACHINE = ("cpu", "cores", "devices")  # the keys of env.json that decide the speed

# Kind of evidence -> the method that this project means to have for it, and what to do until it is there.
INTENDED = {
    "examples": ("gift", "it learns from labelled rows", ""),
    "documents": ("taalm", "it learns new facts from text", "write questions and answers about the documents as rows"),
    "instruction": ("tagi", "it makes an adapter from a task in words", "write some rows that follow the instruction"),
    "repair": ("idp", "it wins back what compression lost", "write rows of the task on which the model got worse"),
}


def plan(
    model: str,
    evidence: Evidence | None = None,
    *,
    method: str | None = None,
    tuner: str | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    recipe: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what `adapt` with the same arguments would take and give. Reads no weights, writes nothing.

    Args:
        evidence: what the user has; without it, what depends on rows is None.
        method: None recommends one for the evidence.

    The other arguments are those of `adapt`.

    Returns:
        "method" (name, whether this version has it, why), "command" and "model"; for a method that is built also
        "memory_mib" (with the batch it is for, and the formula), "steps", "tokens", "seconds", "exports" and what
        `_adapt.preview` returns.
    """
    if evidence is not None and method is None and recipe is None and not _is_built(evidence.kind):
        return {"method": _missing(evidence.kind), "command": None, "model": _base(locate(model))}
    choices: dict[str, Any] = {"method": method, "tuner": tuner, "seed": seed, "recipe": recipe}
    choices["overrides"] = dict(overrides or {})
    resolved = None if evidence else _without_evidence(model, choices)
    if resolved and (resolved.evidence.paths or resolved.evidence.text):
        evidence = resolved.evidence.value()  # the recipe names it
    found: dict[str, Any] = {}
    if evidence is not None:
        found = _adapt.preview(model, evidence, out=out, **choices)
        resolved = recipes.build(found["recipe"])
    assert resolved is not None
    return {
        "method": _recommendation(resolved, method),
        "command": shlex.join(_words(model, evidence, choices, resolved, found.get("out"))),
        **_figures(_Shapes.of(resolved), found),
    }


def _is_built(kind: str) -> bool:
    return any(method.evidence == kind and method.default for method in methods().values())


def _missing(kind: str) -> dict[str, Any]:
    name, why, instead = INTENDED[kind]
    return {
        "name": name,
        "built": False,
        "why": f"for {kind} it is {name}: {why}; this version does not have it yet",
        "instead": f"{instead}, and use --examples",
    }


def _recommendation(resolved: Recipe, asked: str | None) -> dict[str, Any]:
    method, tuner = find_method(resolved.method), find_tuner(resolved.tuner_name)
    kind = resolved.evidence.kind
    why = "asked for" if asked else f"the default for {kind}" if method.default else "named by the recipe"
    return {
        "name": method.name,
        "built": True,
        "why": f"{why}: {method.title}",
        "tuner": tuner.name,
        "learns": tuner.learns,
    }


def _without_evidence(model: str, choices: Mapping[str, Any]) -> Recipe:
    """Return the recipe where no evidence is named, with that of the recipe file if it has some."""
    kind = find_method(choices["method"]).evidence if choices["method"] else "examples"
    given: dict[str, Any] = {"model": model, "evidence": {"kind": kind}}
    given |= {"method": choices["method"]} if choices["method"] else {}
    given |= {"tuner": {"name": choices["tuner"]}} if choices["tuner"] else {}
    return recipes.resolve(choices["recipe"], choices["overrides"], given)


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
    def adapted_sites(self) -> list[str]:
        """The names of the adapted layers; none for a soft prompt."""
        prompt = self.adapted.peft_config["default"].is_prompt_learning
        return [] if prompt else list(self.adapted.base_model.targeted_module_names)


def _figures(shapes: _Shapes, found: Mapping[str, Any]) -> dict[str, Any]:
    rows, trainable = found.get("rows"), count_parameters(shapes.adapted)
    tokens = _tokens(shapes.recipe, rows, found["steps"]) if rows else None
    batch = _largest_batch(shapes.recipe, rows)
    return {
        "model": _base(shapes.source),
        "trainable_parameters": trainable,
        "adapter_bytes": 4 * trainable,
        "comparison": found.get("comparison"),
        "memory_mib": _memory(shapes, batch, trainable).to_dict(),
        "memory_batch": vars(batch),
        "memory_formula": FORMULA,
        "rows": rows,
        "steps": found.get("steps"),
        "tokens": tokens,
        "seconds": _seconds(shapes.recipe, tokens, Path(found.get("out") or "runs/any").parent),
        "exports": prospects(shapes.source, shapes.base, shapes.recipe, shapes.adapted),
        "recipe": shapes.recipe.model_dump(mode="json"),
    }


def _base(source: Source) -> dict[str, Any]:
    base = empty_model(source)
    return {
        "reference": str(source.reference),
        "class": type(base).__name__,
        "parameters": _count(base),
        "linear_layers": len(find_sites(base)),
        "quantised": source.reference.quantisation or _stored_quantisation(base),
    }


def _count(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _stored_quantisation(model: PreTrainedModel) -> str | None:
    """Return how the weights on disk are quantised ("gptq", "awq", …), or None."""
    settings = model.config.to_dict().get("quantization_config")
    return str(dict(settings).get("quant_method", "yes")) if settings else None


def _memory(shapes: _Shapes, batch: BatchShape, trainable: int) -> MemoryEstimate:
    training, quantisation = shapes.recipe.training, shapes.source.reference.quantisation
    dtype = choose_dtype(training.dtype, choose_device(training.device))
    if _stored_quantisation(shapes.base):
        weights = sum(file.stat().st_size for file in weight_files(shapes.source.folder, shapes.recipe.model))
    else:
        weights = base_bytes(shapes.parameters, shapes.sites, dtype, quantisation)
    kept = activation_bytes(shapes.sites, shapes.adapted_sites, batch, dtype, training.gradient_checkpointing)
    vocabulary = shapes.base.config.get_text_config().vocab_size
    return MemoryEstimate(weights, ADAPTER_BYTES * trainable, kept, logit_bytes(batch, vocabulary, dtype))


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
            run, speed = recipes.load(path.parent / "recipe.yaml"), read_metrics(path.parent).get("tokens_per_s")
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


def _words(
    model: str, evidence: Evidence | None, choices: Mapping[str, Any], recipe: Recipe, out: str | None
) -> list[str]:
    """Return the command that does what was planned."""
    words = ["budwood", "adapt", model, *_evidence_words(evidence, recipe)]
    words += ["--method", recipe.method] if choices["method"] or not choices["recipe"] else []
    for name in ("tuner", "recipe", "seed"):
        words += [f"--{name}", str(choices[name])] if choices[name] is not None else []
    for name, value in choices["overrides"].items():
        words += ["--set", f"{name}={json.dumps(value, ensure_ascii=False)}"]
    return [*words, "-o", out or "RUN"]


def _evidence_words(evidence: Evidence | None, recipe: Recipe) -> list[str]:
    if evidence is None:
        return [f"--{recipe.evidence.kind}", "FILE"]
    if isinstance(evidence, Instruction):
        pairs = [word for pair in evidence.examples for word in ("--example", " => ".join(pair))]
        return ["--instruction", evidence.text, *pairs]
    return [word for path in evidence.files() for word in (f"--{evidence.kind}", str(path))]
