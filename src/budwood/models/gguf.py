"""A GGUF file as an ordinary model folder: dequantised once to fp32 safetensors, then kept in the cache.

transformers does the work (names, permuted rows, tokenizers). What is put right here: the configuration is rid of the
quantisation that no longer is, so that the model can be saved; the way digits are split, which transformers leaves out
for some vocabularies; and weights that a file lacks are an error instead of random numbers.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf

from budwood.errors import ModelError, StorageError
from budwood.models.borders import loading_errors, quiet_transformers
from budwood.models.files import CONFIG, is_whole, weight_files
from budwood.models.fingerprint import fingerprint_file
from budwood.models.gguf_header import GgufHeader, read_header
from budwood.storage import cache_dir, guarded, new_folder, read_json, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

log = logging.getLogger(__name__)

# Counts up when this file begins to make other folders from the same GGUF file; older ones are then made anew.
CONVERSION = 1

# Vocabularies (`tokenizer.ggml.pre`) that split digits one by one before anything else, as in llama.cpp's
# `llm_tokenizer_bpe`. Without it "a  12" becomes `a ␣ ␣ 1 2` instead of `a ␣␣ 1 2`.
SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})

# A special token of the tokenizer -> its key in `tokenizer.ggml`. Set here: transformers 5.17 takes other tokens.
_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}

# What transformers leaves in the JSON files about how they were loaded.
_NOISE = {
    CONFIG: ("_name_or_path", "_model_name_or_path", "quantization_config"),
    "generation_config.json": ("_from_model_config",),
    "tokenizer_config.json": ("name_or_path", "is_local", "local_files_only", "gguf_file"),
}


def dequantised(file: Path) -> Path:
    """Return the folder in the cache that holds `file` as fp32 safetensors; it is made at the first call.

    Raises:
        ModelError: the file is damaged, cut off, or of an architecture that transformers does not read from GGUF.
        StorageError: the cache's disk has no room.
    """
    header = read_header(file)
    folder = cache_dir() / "gguf" / fingerprint_file(file)
    if _is_current(folder):
        return folder
    if int(header.values.get("split.count", 0)) > 1:
        raise ModelError(f"{file} is one part of several", action="join them with `llama-gguf-split --merge`")
    _check_room(folder.parent, header)
    log.info("dequantising %s (%d M weights) into %s; this is done once", file, header.weights // 10**6, folder)
    try:
        with new_folder(folder, replace=True) as made:
            _convert(file, header, made)
            if _is_current(folder):
                raise StorageError(f"{folder} was made by another process meanwhile")
    except StorageError:
        if not _is_current(folder):
            raise
    log.info("dequantised %s", file)
    return folder


def _is_current(folder: Path) -> bool:
    """Whether the folder in the cache is whole and made by this version of the conversion."""
    try:
        return read_json(folder / "conversion.json") == {"version": CONVERSION} and is_whole(folder)
    except (OSError, ValueError):
        return False


def _check_room(place: Path, header: GgufHeader) -> None:
    with guarded(place):
        place.mkdir(parents=True, exist_ok=True)
    needed, free = 4 * header.weights, shutil.disk_usage(place).free
    if free < needed:
        raise StorageError(
            f"{place} has {free >> 20} MiB left; the model in fp32 needs {needed >> 20} MiB",
            action="free some space, or set BUDWOOD_CACHE to a place on another disk",
        )


def _convert(file: Path, header: GgufHeader, folder: Path) -> None:
    what = f"{file} (GGUF, architecture {header.architecture})"
    with quiet_transformers():
        with loading_errors(what):
            model = _load_model(file, header)
            tokenizer = _load_tokenizer(file, header, model)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    _tidy(folder, model.config.vocab_size)
    write_json(folder / "conversion.json", {"version": CONVERSION})
    _check(model, folder, what)


def _tidy(folder: Path, vocabulary: int) -> None:
    """Take out of the JSON files what is not the model's."""
    for name, keys in _NOISE.items():
        values = read_json(folder / name)
        write_json(folder / name, {key: value for key, value in values.items() if key not in keys})
    core = read_json(folder / "tokenizer.json")
    # transformers adds GPT-2's end token where the file has none: a word that the model has no embedding for.
    core["added_tokens"] = [token for token in core["added_tokens"] if token["id"] < vocabulary]
    write_json(folder / "tokenizer.json", core)


def _load_model(file: Path, header: GgufHeader) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    with _lean_loader():
        model, report = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            local_files_only=True,
        )
    if report["missing_keys"]:
        raise ValueError(f"it lacks {len(report['missing_keys'])} tensors, first {min(report['missing_keys'])}")
    if ends := _end_tokens(header):
        model.config.eos_token_id = model.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
    return model


def _end_tokens(header: GgufHeader) -> list[int]:
    """The tokens that end an answer: of the text, and of a turn where the file names it apart."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return list(dict.fromkeys(int(header.values[key]) for key in keys if key in header.values))


def _load_tokenizer(file: Path, header: GgufHeader, model: PreTrainedModel) -> PreTrainedTokenizerFast:
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # Not AutoTokenizer: it reads the whole vocabulary once more, to find the class, which here is always this one.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    if header.values.get("tokenizer.ggml.pre") in SINGLE_DIGITS:
        core = tokenizer.backend_tokenizer
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), core.pre_tokenizer]
        )
    for name, key in _SPECIAL.items():
        if (token := header.values.get(f"tokenizer.ggml.{key}")) is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(int(token)))
    tokenizer.model_max_length = model.config.max_position_embeddings
    return tokenizer


@contextlib.contextmanager
def _lean_loader() -> Iterator[None]:
    """Let transformers' loader read the file once and ask for the table of names once, and log instead of a bar.

    It parses the whole vocabulary for the configuration and again for the weights, and builds the same table for each
    of the model's submodules: 12 of 24 s for SmolLM2-135M. Its own switch does not reach the bar over the tensors.
    """
    from transformers import modeling_gguf_pytorch_utils as loader

    def counted(tensors: list[Any], desc: str) -> Iterator[Any]:
        for number, tensor in enumerate(tensors):
            if number % 100 == 0:
                log.debug("tensor %d of %d", number, len(tensors))
            yield tensor

    originals = gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm
    gguf.GGUFReader = functools.cache(gguf.GGUFReader)
    gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
    loader.tqdm = counted
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm = originals


def _check(model: PreTrainedModel, folder: Path, what: str) -> None:
    """Refuse a folder whose weights are not finite or not all written; reads the heads of the files only."""
    from safetensors import safe_open

    bad = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    if bad:
        raise ModelError(f"{what} holds values that are not finite, in {bad[0]}", action="fetch the file again")
    written = set()
    for path in weight_files(folder, str(folder)):
        with safe_open(path, framework="pt") as weights:
            written.update(weights.keys())
    assert written >= {name for name, _ in model.named_parameters()}, f"{folder} was not written whole"
