"""The story of one adaptation, in one page: recipe -> lesson -> base -> training -> verify -> publish."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from budwood import _published, facts, peft, storage
from budwood._request import RECIPE
from budwood._saved import native_base
from budwood.data.report import Progress
from budwood.errors import InterruptedRunError, NotSupportedError
from budwood.evals.choice import choice_figures
from budwood.evals.progress import progress_shown
from budwood.evidence import Instruction
from budwood.export.logits import probe_inputs
from budwood.facts import AdapterFacts
from budwood.models import Base, Source, empty_model, find_sites, load_base, locate
from budwood.recipe import Recipe
from budwood.run import Run, open_run
from budwood.training.folder import RunFolder
from budwood.tuning.attach import adapted_layers
from budwood.tuning.lesson import AdapterStart, Learned, Lesson, Order
from budwood.tuning.plain import PlainLearner
from budwood.tuning.registry import find_method, find_tuner
from budwood.tuning.soft_prompts import Prompted

LORA_RANK = 16  # the baseline that every run is compared with


def make(recipe: Recipe, place: Path, *, resume: bool, replace: bool, progress: bool) -> Run:
    """Train and publish an adapter in the run folder `place`; the arguments are those of `adapt`."""
    start = time.monotonic()
    order, lesson = _read(recipe, progress)  # before the folder is made: what cannot be used leaves nothing behind
    folder = RunFolder(place)
    with _resumable(folder), folder.session(resume=resume, replace=replace):
        if not (resume and (place / RECIPE).exists()):
            storage.write_text(place / RECIPE, recipe.to_yaml())
        base = load_base(order.source, dtype=recipe.training.dtype, device=recipe.training.device)
        learned = lesson.learn(base, folder, progress=progress, resume=resume)
        metrics = {"trainable_params": learned.parameters, **learned.metrics}
        if isinstance(learned.model, Prompted):
            with progress_shown(progress) as show:
                metrics["choice"] = choice_figures(
                    learned.model, learned.parts, base.model, learned.held_out, progress=show
                )
        _publish(recipe, lesson, base, learned, folder, metrics)
        folder.write_metrics(metrics | {"wall_s": round(time.monotonic() - start, 1)})
    return open_run(place)


def outline(recipe: Recipe, *, progress: bool) -> dict[str, Any]:
    """Return what `make` would do, without reading weights: parameters, rows, steps."""
    order, lesson = _read(recipe, progress)
    told = lesson.outline()
    return {
        "recipe": recipe.model_dump(mode="json"),
        "trainable_params": told.parameters,
        "rows": told.rows,
        "steps": told.steps,
        "warmup_steps": told.warmup_steps,
        "comparison": compare_with_lora(
            empty_model(order.source), _called(recipe), told.adapted_layers, told.parameters
        ),
    }


def _read(recipe: Recipe, progress: bool) -> tuple[Order, Lesson]:
    """Read the evidence, which may take long."""
    with progress_shown(progress) as show:
        order = _order(recipe, show)
        load_learner = find_method(recipe.method).load_learner
        learner = PlainLearner() if load_learner is None else load_learner()
        return order, learner.read(order)


def _order(recipe: Recipe, show: Progress | None) -> Order:
    evidence = recipe.evidence.value()
    if isinstance(evidence, Instruction):
        raise NotSupportedError(f"training from {recipe.evidence.kind} is not part of this version")
    peft.register()
    return Order(
        source=locate(recipe.model),
        files=evidence.files(),
        tuner=find_tuner(recipe.tuner_name),
        tuner_settings=recipe.tuner,
        learner=recipe.learner,
        data=recipe.data,
        training=recipe.training,
        seed=recipe.seed,
        show=show,
        start=_start(recipe),
    )


def _start(recipe: Recipe) -> AdapterStart | None:
    """Return the run that training goes on from, once its base is found to be the recipe's."""
    if recipe.learner is None or recipe.learner.starts_from is None:
        return None
    run = open_run(recipe.learner.starts_from, base=recipe.model)
    return AdapterStart(run.path, run.adapter)


@contextlib.contextmanager
def _resumable(folder: RunFolder) -> Iterator[None]:
    """Let every interruption say how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise InterruptedRunError("interrupted", action=f"go on with `{folder.resume_command}`") from error
    except InterruptedRunError as error:
        raise InterruptedRunError(error.got, action=f"go on with `{folder.resume_command}`") from error


def _publish(
    recipe: Recipe, lesson: Lesson, base: Base, learned: Learned, folder: RunFolder, metrics: dict[str, Any]
) -> None:
    """Write `adapter/`, which appears only when a fresh process has loaded it and computed the same bits."""
    native = native_base(base)
    with storage.new_folder(folder.adapter, replace=True) as staged:
        facts.save(staged, learned.model, base, _facts(recipe, lesson, base, learned), metrics)
        report = _published.verify(learned.model.eval(), staged, native, probe_inputs(base.tokenizer, seed=0))
        metrics["verify"] = report.to_dict()
        metrics["adapter_bytes"] = sum(file.stat().st_size for file in facts.weight_files(staged))
        metrics["comparison"] = compare_with_lora(
            base.model, _called(recipe), adapted_layers(learned.model), learned.parameters, metrics["adapter_bytes"]
        )
        report.require()


def _facts(recipe: Recipe, lesson: Lesson, base: Base, learned: Learned) -> AdapterFacts:
    source: Source = base.source
    native = native_base(base)
    learner = {} if recipe.learner is None else {"learner": recipe.learner.model_dump(mode="json")}
    return AdapterFacts(
        base=str(source.reference),
        revision=source.revision,
        fingerprint=source.fingerprint,
        method=recipe.method,
        tuner=recipe.tuner_name,
        settings=recipe.tuner.model_dump(mode="json") | learner,
        dtype=native.dtype,
        attention=native.attention,
        template=lesson.renderer.template,
        system=recipe.data.system,
        template_hash=lesson.renderer.template_hash,
        seed=recipe.seed,
        trainable_parameters=learned.parameters,
    )


def _called(recipe: Recipe) -> str:
    """Return what the result is called beside a LoRA."""
    return recipe.method if find_method(recipe.method).mark else recipe.tuner_name


def compare_with_lora(
    base: PreTrainedModel, name: str, layers: Collection[str] | None, parameters: int, size: int | None = None
) -> list[dict[str, Any]]:
    """Return the adapter's size beside that of LoRA of rank 16 on the same layers, both in fp32.

    A LoRA has r (d_in + d_out) numbers a layer; the size of its file is 4 bytes a number, without the header.

    Args:
        layers: the adapted layers; what changes no linear one, or none at all, is compared with a LoRA on all of them.
    """
    everywhere = find_sites(base)
    sites = [site for site in everywhere if layers is not None and site.name in layers] or everywhere
    lora = sum(LORA_RANK * (site.in_features + site.out_features) for site in sites)
    return [
        {"adapter": f"this {name}", "parameters": parameters, "bytes": size or 4 * parameters},
        {"adapter": f"lora r={LORA_RANK}, same layers", "parameters": lora, "bytes": 4 * lora},
    ]
