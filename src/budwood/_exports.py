"""The exports of a saved adapter: which there are, what each is opened as, and where none may be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from budwood import _published
from budwood._saved import Loaded, Saved
from budwood.errors import NotSupportedError, UsageError, nearest
from budwood.export.checks import VerifyReport
from budwood.export.dequantised import OnQuantised
from budwood.export.gguf_lora import export_gguf
from budwood.export.gguf_verify import verify_gguf
from budwood.export.logits import adapted_logits, base_logits, exact_logits, probe_inputs
from budwood.export.merged import export_merged, verify_merged
from budwood.export.portable import export_lora
from budwood.export.prompts import VECTORS as PROMPT_VECTORS
from budwood.export.prompts import export_prompts
from budwood.export.result import ExportResult
from budwood.export.verify import verify_portable
from budwood.models.quantisation import is_quantised

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export(saved: Saved, kind: str, out: Path, *, dtype: str = "auto", force: bool = False) -> ExportResult:
    """Write an export and verify it; arguments and errors are those of `Run.export`."""
    if kind not in EXPORTS:
        raise NotSupportedError(f"there is no export to {kind!r}", action=nearest(kind, EXPORTS))
    if dtype != "auto" and dtype not in DTYPES:
        raise UsageError(f"no export in {dtype!r}", wanted=nearest(dtype, ["auto", *DTYPES]))
    if kind != "prompts":
        _published.require_change_of_weights(saved.adapter, kind)
    _refuse_place(saved, kind, out)
    return EXPORTS[kind](saved, out, DTYPES.get(dtype), force)


def _lora(saved: Saved, out: Path, dtype: torch.dtype | None, replace: bool) -> ExportResult:
    saved.info.require("export")
    loaded = saved.open_plain(exact=False)
    inputs = probe_inputs(loaded.tokenizer, seed=0)
    return portable(
        saved,
        loaded,
        out,
        dtype=dtype or torch.float32,
        replace=replace,
        inspect=lambda folder: check_portable(saved, loaded, folder, inputs).require(),
    )


def _gguf(saved: Saved, out: Path, dtype: torch.dtype | None, replace: bool) -> ExportResult:
    saved.info.require("export")
    loaded = saved.open_plain(exact=True)
    inputs = probe_inputs(loaded.tokenizer, seed=0)
    return export_gguf(
        loaded.model,
        out,
        base_id=saved.source.loadable,
        revision=saved.source.revision,
        card=saved.card(),
        dtype=dtype or torch.float32,
        replace=replace,
        inspect=lambda path: verify_gguf(path, loaded.model, saved.source, inputs).require(),
    )


def _merged(saved: Saved, out: Path, dtype: torch.dtype | None, replace: bool) -> ExportResult:
    loaded = saved.open_plain(exact=True)
    inputs = probe_inputs(loaded.tokenizer, seed=0)
    trained = _on_quantised(saved, inputs) if is_quantised(saved.source) else None
    adapted, base = adapted_logits(loaded.model, inputs), base_logits(loaded.model, inputs)
    return export_merged(
        loaded.model,
        saved.source,
        out,
        card=saved.card(),
        tokenizer=loaded.tokenizer,
        dtype=dtype,
        replace=replace,
        inspect=lambda folder: verify_merged(folder, adapted, base, inputs, trained=trained, accept=replace).require(),
    )


def _prompts(saved: Saved, out: Path, dtype: torch.dtype | None, replace: bool) -> ExportResult:
    saved.info.require("export")
    folders = _published.prompt_folders(saved.adapter)
    loaded = saved.open()
    return export_prompts(
        folders,
        loaded.base.model,
        out,
        base_id=saved.source.loadable,
        revision=saved.source.revision,
        card=saved.card(),
        dtype=dtype or loaded.base.model.dtype,
        replace=replace,
        inputs=probe_inputs(loaded.tokenizer, seed=0),
    )


def _on_quantised(saved: Saved, inputs: Tensor) -> OnQuantised:
    model = saved.open().model
    ids = inputs.to(model.device)
    return OnQuantised(adapted_logits(model, ids), base_logits(model, ids))


EXPORTS = {"lora": _lora, "gguf": _gguf, "merged": _merged, "prompts": _prompts}


def portable(saved: Saved, loaded: Loaded, folder: Path, **options: Any) -> ExportResult:
    """Write a portable LoRA; `options` are those of `export_lora`."""
    return export_lora(
        loaded.model,
        folder,
        base_id=saved.source.loadable,
        revision=saved.source.revision,
        card=saved.card(),
        tokenizer=loaded.tokenizer,
        **options,
    )


def check_portable(saved: Saved, loaded: Loaded, folder: Path, inputs: Tensor) -> VerifyReport:
    """Check a portable LoRA in a process that never imports budwood."""
    wanted = adapted_logits(loaded.model, inputs.to(loaded.model.device))
    with saved.plain_base() as base:
        return verify_portable(
            folder,
            base,
            wanted,
            inputs,
            loaded.model.dtype,
            exact=lambda: exact_logits(loaded.model, inputs.to(loaded.model.device)),
        )


def _refuse_place(saved: Saved, kind: str, out: Path) -> None:
    """Refuse to replace anything but an earlier export, and to write over or around the adapter itself."""
    place, own = out.resolve(), (saved.path.resolve(), saved.adapter.resolve())
    if any(place == folder or place in folder.parents for folder in own) or place == own[1].parent:
        raise UsageError(f"{out} holds the adapter that is to be exported", action="choose another place")
    mark = {"merged": "config.json", "prompts": PROMPT_VECTORS}.get(kind, "adapter_config.json")
    if out.is_dir() and kind != "gguf" and any(out.iterdir()) and not (out / mark).is_file():
        raise UsageError(
            f"{out} holds files that are no earlier export",
            wanted="a new place, or an export to replace",
            action="choose another place",
        )
