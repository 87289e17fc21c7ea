"""The story of one adaptation, in one page: evidence -> recipe -> base -> data -> training -> verify -> publish."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel

from budwood import facts, peft, storage
from budwood import recipe as recipes
from budwood.data.collate import Collator
from budwood.data.examples import ExampleSet, load_examples
from budwood.data.render import Renderer
from budwood.errors import ConfigError, NotSupportedError
from budwood.evidence import Evidence, Examples, Instruction
from budwood.export.logits import probe_inputs
from budwood.export.verify import verify_native
from budwood.facts import AdapterFacts
from budwood.models import Base, Source, empty_model, find_sites, load_base, load_tokenizer, locate
from budwood.recipe import Recipe
from budwood.run import Run, native_base, open_run
from budwood.training.folder import RunFolder
from budwood.training.train import TrainingResult, planned_steps, train
from budwood.tuning.attach import attach, count_parameters
from budwood.tuning.registry import find_tuner

LORA_RANK = 16  # the baseline that every run is compared with


def adapt(
    model: str,
    evidence: Evidence,
    *,
    method: str | None = None,
    tuner: str | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    recipe: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Run:
    """Make an adapter for `model` from what the user has, verify it, and return the run that holds it.

    Args:
        model: a model reference: `smollm2`, `org/name[@revision]`, a folder, `file.gguf`, perhaps with `+nf4`.
        evidence: what the user has; its kind decides the default method.
        method: how evidence becomes an adapter.
        tuner: where the new parameters live; the method decides unless given.
        out: the run folder; by default a new one under `runs/`.
        seed: decides the adapter's start, the order of rows and the split.
        recipe: a YAML file or the name of a preset, under the other arguments.
        overrides: single settings by their dotted name, such as `{"training.epochs": 2}`.
        resume: go on with the interrupted run in `out`.
        force: replace a finished run in `out`.
        progress: show a progress bar on standard error.

    Raises:
        BudwoodError: anything that went wrong, with what to do; `exit_code` tells the kind.
    """
    resolved = _resolve(model, evidence, method, tuner, seed, recipe, overrides)
    place = Path(out) if out is not None else _fresh_place(resolved)
    with RunFolder.open(place, resume=resume, replace=force) as folder:
        _keep_recipe(folder, resolved, resume)
        _make(resolved, folder, resume, progress)
    return open_run(place)


def preview(
    model: str,
    evidence: Evidence,
    *,
    method: str | None = None,
    tuner: str | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    recipe: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Return what `adapt` would do with the same arguments: recipe, parameters, rows, steps. Writes nothing."""
    resolved = _resolve(model, evidence, method, tuner, seed, recipe, overrides)
    source = locate(resolved.model)
    rows = _rows(resolved, Renderer(load_tokenizer(source), resolved.data.template, resolved.data.system))
    adapted = _attach(empty_model(source), resolved)
    return {
        "recipe": resolved.model_dump(mode="json"),
        "out": str(out) if out is not None else str(_fresh_place(resolved)),
        "trainable_parameters": count_parameters(adapted),
        "rows": rows.report.to_dict(),
        "steps": planned_steps(len(rows.train), resolved.training),
        "comparison": compare_with_lora(adapted, count_parameters(adapted), None),
    }


@dataclass(frozen=True)
class _Prepared:
    base: Base
    rows: ExampleSet
    renderer: Renderer
    adapted: PeftModel


def _make(recipe: Recipe, folder: RunFolder, resume: bool, progress: bool) -> None:
    start = time.monotonic()
    prepared = _prepare(recipe)
    result = train(
        prepared.adapted,
        prepared.rows.train,
        prepared.rows.evaluation,
        Collator(prepared.renderer.pad_token_id),
        recipe.training,
        folder,
        seed=recipe.seed,
        progress=progress,
        resume=resume,
    )
    metrics = _metrics(prepared, result)
    _publish(recipe, prepared, folder, metrics)
    folder.write_metrics(metrics | {"wall_s": round(time.monotonic() - start, 1)})


def _prepare(recipe: Recipe) -> _Prepared:
    """Load the base, read the rows, attach the adapter."""
    source = locate(recipe.model)
    tokenizer = load_tokenizer(source)
    renderer = Renderer(tokenizer, recipe.data.template, recipe.data.system)
    rows = _rows(recipe, renderer)  # before the weights: bad data is found in a second
    base = load_base(source, dtype=recipe.training.dtype, device=recipe.training.device)
    return _Prepared(base, rows, renderer, _attach(base.model, recipe))


def _rows(recipe: Recipe, renderer: Renderer) -> ExampleSet:
    evidence = recipe.evidence.value()
    if not isinstance(evidence, Examples):
        raise NotSupportedError(f"training from {recipe.evidence.kind} is not part of this version")
    return load_examples(evidence.files(), renderer, recipe.data, seed=recipe.seed)


def _attach(model: Any, recipe: Recipe) -> PeftModel:
    peft.register()
    return attach(model, find_tuner(recipe.tuner_name), recipe.tuner, seed=recipe.seed)


def _publish(recipe: Recipe, prepared: _Prepared, folder: RunFolder, metrics: dict[str, Any]) -> None:
    """Write `adapter/`, which appears only when a fresh process has loaded it and computed the same bits."""
    with storage.new_folder(folder.adapter, replace=True) as staged:
        facts.save(staged, prepared.adapted, prepared.base, _facts(recipe, prepared), metrics)
        report = verify_native(
            prepared.adapted.eval(), staged, native_base(prepared.base), probe_inputs(prepared.base.tokenizer, seed=0)
        )
        metrics["verify"] = report.to_dict()
        metrics["adapter_bytes"] = (staged / "adapter_model.safetensors").stat().st_size
        metrics["comparison"] = compare_with_lora(
            prepared.adapted, metrics["trainable_params"], metrics["adapter_bytes"]
        )
        report.require()


def _facts(recipe: Recipe, prepared: _Prepared) -> AdapterFacts:
    source: Source = prepared.base.source
    native = native_base(prepared.base)
    return AdapterFacts(
        base=str(source.reference),
        revision=source.revision,
        fingerprint=source.fingerprint,
        method=recipe.method,
        tuner=recipe.tuner_name,
        settings=recipe.tuner.model_dump(mode="json"),
        dtype=native.dtype,
        attention=native.attention,
        template=prepared.renderer.template,
        system=recipe.data.system,
        template_hash=prepared.renderer.template_hash,
        seed=recipe.seed,
        trainable_parameters=count_parameters(prepared.adapted),
    )


def _metrics(prepared: _Prepared, result: TrainingResult) -> dict[str, Any]:
    return {
        "trainable_params": count_parameters(prepared.adapted),
        **result.to_dict(),
        "rows": prepared.rows.report.to_dict(),
    }


def compare_with_lora(model: PeftModel, parameters: int, size: int | None) -> list[dict[str, Any]]:
    """Return the adapter's size beside that of LoRA of rank 16 on the same layers, both in fp32.

    A LoRA has r (d_in + d_out) numbers a layer; the size of its file is 4 bytes a number, without the header.
    """
    config = model.peft_config["default"]
    sites = find_sites(model.get_base_model())
    if not config.is_prompt_learning:  # a prompt changes no layer: it is compared with a LoRA on all of them
        adapted = set(model.base_model.targeted_module_names)
        sites = [site for site in sites if site.name in adapted]
    lora = sum(LORA_RANK * (site.in_features + site.out_features) for site in sites)
    name = config.peft_type.lower()
    return [
        {"adapter": f"this {name}", "parameters": parameters, "bytes": size or 4 * parameters},
        {"adapter": f"lora r={LORA_RANK}, same layers", "parameters": lora, "bytes": 4 * lora},
    ]


def _resolve(
    model: str,
    evidence: Evidence,
    method: str | None,
    tuner: str | None,
    seed: int | None,
    recipe: str | Path | None,
    overrides: Mapping[str, Any] | None,
) -> Recipe:
    given: dict[str, Any] = {"model": model, "evidence": _evidence_settings(evidence)}
    given |= {"method": method} if method else {}
    given |= {"seed": seed} if seed is not None else {}
    # Before the overrides: another tuner's name drops the settings of the one in the recipe, not those given with it.
    named = {"tuner": {"name": tuner}} if tuner else {}
    return recipes.resolve(recipe, named, overrides or {}, given)


def _evidence_settings(evidence: Evidence) -> dict[str, Any]:
    if isinstance(evidence, Instruction):
        return {"kind": evidence.kind, "text": evidence.text, "pairs": evidence.examples}
    return {"kind": evidence.kind, "paths": evidence.files()}


def _fresh_place(recipe: Recipe) -> Path:
    """Return a folder under `runs/` that does not exist yet."""
    stem = Path("runs") / f"{recipe.method}-{time.strftime('%Y%m%d-%H%M%S')}"
    return next(p for p in (stem, *(Path(f"{stem}-{i}") for i in range(2, 1000))) if not p.exists())


def _keep_recipe(folder: RunFolder, recipe: Recipe, resume: bool) -> None:
    """Write the recipe into a new run; on resume, refuse another one than the run began with."""
    path = folder.path / "recipe.yaml"
    if resume and path.exists():
        changed = recipes.differences(recipes.load(path), recipe)
        if changed:
            raise ConfigError(
                "the run to resume has another recipe: " + "; ".join(changed),
                wanted="the recipe that it began with",
                action=f"give the same arguments, or start a new run (see {path})",
            )
        return
    storage.write_text(path, recipe.to_yaml())
