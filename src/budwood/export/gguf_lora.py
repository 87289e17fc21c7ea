"""A trained adapter as one GGUF file that llama.cpp loads onto the GGUF of its base.

llama.cpp multiplies B A by alpha / r, with one alpha for the file and no other scale. So the scale is folded into B,
every module is padded with zeros to one rank r, and alpha is r. Names and order of rows: `gguf_names`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType, LlamaFileType
from peft import PeftModel

from budwood.errors import UsageError
from budwood.export.card import CardFacts
from budwood.export.checks import VerifyReport
from budwood.export.gguf_names import GgufNames
from budwood.export.pairs import changes_nothing, padded_pairs, refuse_tied_head
from budwood.export.result import ExportResult
from budwood.storage import new_file
from budwood.tuning.factors import LoraFactors, lora_factors

SUFFIX = ".gguf"
FILE_TYPES = {
    torch.float32: (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    torch.float16: (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    torch.bfloat16: (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
}


def export_gguf(  # noqa: PLR0913
    model: PeftModel,
    out: Path,
    *,
    base_id: str,
    revision: str | None,
    card: CardFacts,
    adapter: str = "default",
    dtype: torch.dtype = torch.float32,
    replace: bool = False,
    inspect: Callable[[Path], VerifyReport] | None = None,
) -> ExportResult:
    """Write the adapter of `model` as a GGUF LoRA; whole, or not at all.

    Args:
        model: the trained model; it is not changed.
        out: the file to write; where it does not end in `.gguf`, a folder, and the file gets the folder's name.
        base_id: what the base is called, for the file's metadata.
        revision: commit of the base on the hub, or None.
        card: what the file's metadata states.
        adapter: which adapter of `model`.
        dtype: of the factors. With 16 bits llama.cpp rounds what it multiplies them with, too.
        replace: whether a file that is there already may be replaced.
        inspect: called with the written file before it appears at `out`; if it raises, nothing appears, else its
            checks are part of the result.

    Raises:
        NotSupportedError: the adapter is no LoRA, or llama.cpp has not what it adapts; the message says why.
        AdapterError: a factor is not finite, or does not fit into `dtype`.
        StorageError: the file exists, or the disk fails.
    """
    if dtype not in FILE_TYPES:
        raise UsageError(f"no GGUF LoRA in {dtype}", wanted=", ".join(str(known) for known in FILE_TYPES))
    base = model.get_base_model()
    names = GgufNames(base)
    factors = lora_factors(model, adapter)
    refuse_tied_head(base)
    rank = max(pair.A.shape[0] for pair in factors.values())
    tensors = {names.tensor(f"{module}.weight"): pair for module, pair in padded_pairs(factors, rank, dtype).items()}
    path = gguf_path(out)
    with new_file(path, replace=replace) as partial:
        write_lora(partial, names, tensors, _metadata(card, base_id, revision, path.stem))
        checks = inspect(partial).checks if inspect else ()
    notes = ("Every ΔW is zero: this adapter changes nothing.",) if changes_nothing(factors) else ()
    return ExportResult(
        folder=path.absolute(),
        kind="gguf",
        bytes=path.stat().st_size,
        rank=rank,
        modules=len(factors),
        serve_lines=serve_lines(path.absolute()),
        notes=notes,
        checks=checks,
    )


def gguf_path(out: Path) -> Path:
    """Return the file that `out` means: itself, or in a folder a file of the same name."""
    out = Path(out)
    return out if out.suffix == SUFFIX else out / (out.name + SUFFIX)


def serve_lines(path: Path) -> dict[str, str]:
    """Return the lines that use the file. BASE.gguf is any GGUF of the base, quantised or not."""
    options = ["-m", "BASE.gguf", "--lora", str(path)]
    return {
        "llama-server": shlex.join(["llama-server", *options]),
        "llama-cli": shlex.join(["llama-cli", *options, "-p", "PROMPT"]),
    }


def write_lora(path: Path, names: GgufNames, tensors: Mapping[str, LoraFactors], metadata: Mapping[str, str]) -> None:
    """Write the file.

    Args:
        path: of the file.
        names: of the base.
        tensors: llama.cpp's name of each adapted weight and its factors, B in transformers' order of rows; all of one
            rank and precision.
        metadata: text by its key.
    """
    first = next(iter(tensors.values())).A
    kind, file_type = FILE_TYPES[first.dtype]
    writer = gguf.GGUFWriter(path, names.architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(first.shape[0]))
    writer.add_file_type(file_type)
    for key, text in metadata.items():
        writer.add_string(key, text)
    if gguf.Keys.General.BASE_MODEL_NAME.format(id=0) in metadata:
        writer.add_base_model_count(1)
    for name, (a, b) in tensors.items():
        values = {"lora_a": a.float().numpy(), "lora_b": names.to_gguf(name, b.float().numpy())}
        for suffix, array in values.items():
            writer.add_tensor(f"{name}.{suffix}", gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(card: CardFacts, base_id: str, revision: str | None, name: str) -> dict[str, str]:
    """Return what the file says about itself, under GGUF's own keys."""
    general = gguf.Keys.General
    facts = {
        general.NAME: name,
        general.DESCRIPTION: f"{card.method} adapter for {base_id}, made with budwood {card.budwood_version}".strip(),
        general.BASE_MODEL_NAME.format(id=0): base_id,
        general.BASE_MODEL_VERSION.format(id=0): revision or "",
    }
    return {key: text for key, text in facts.items() if text}
