"""The base in fp32 as a GGUF file, to compare llama.cpp with PyTorch on the same weights.

A quantised GGUF would not do: llama.cpp then rounds the activations to 8 bits too, and the difference that this makes
is larger than that of a wrong order of rows in q and k. The file made here is thrown away after the comparison.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGUFValueType, GGUFWriter
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedConfig

from budwood.errors import NotSupportedError, StorageError
from budwood.export.gguf_names import GgufNames
from budwood.models.files import weight_files
from budwood.models.reference import ModelReference
from budwood.models.source import Source, packaged_file

# Those whose metadata is the plain set that `_add_shape` writes.
WRITTEN = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

# Written anew, or about the container and not the model.
_LEFT_OUT = ("GGUF.", "split.", "general.architecture", "general.file_type", "general.quantization_version")


def fp32_gguf(source: Source, model: nn.Module, path: Path) -> Path:
    """Write the base as a GGUF file whose weights are fp32.

    Args:
        source: the base. A GGUF file is rewritten with its own metadata; a folder is written for few architectures.
        model: the base in memory; only its class and configuration are read.
        path: of the new file.

    Raises:
        NotSupportedError: no such file can be made here; the message says why.
        StorageError: the disk has no room for it.
    """
    _check_room(path.parent, sum(parameter.numel() for parameter in model.parameters()))
    if file := gguf_of(source.reference):
        _rewrite(file, path)
    else:
        _write(source.folder, model, path)
    return path


def gguf_of(reference: ModelReference) -> Path | None:
    """Return the GGUF file that a reference names, if it names one."""
    match reference.kind:
        case "packaged":
            return packaged_file(reference.location)
        case "gguf":
            return Path(reference.location)
        case _:
            return None


def _check_room(place: Path, weights: int) -> None:
    needed, free = 4 * weights, shutil.disk_usage(place).free
    if free < needed:
        raise StorageError(f"{place} has {free >> 20} MiB left; the base in fp32 needs {needed >> 20} MiB")


def _rewrite(file: Path, path: Path) -> None:
    reader = gguf.GGUFReader(file)
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith(_LEFT_OUT):
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, inner)
    shapes = {tensor.name: tuple(int(length) for length in reversed(tensor.shape)) for tensor in reader.tensors}
    arrays = (gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors)
    _finish(writer, shapes, arrays)


def _write(folder: Path, model: nn.Module, path: Path) -> None:
    names = GgufNames(model)
    kind = type(model).__name__
    if kind not in WRITTEN:
        raise NotSupportedError(f"no GGUF of {kind} is written here, only of {', '.join(WRITTEN)}")
    writer = GGUFWriter(path, names.architecture)
    _add_shape(writer, model.config)
    stored = _stored(folder, bool(model.config.tie_word_embeddings))
    shapes = {names.tensor(name): shape for name, _, shape in stored}
    _finish(writer, shapes, (names.to_gguf(names.tensor(name), _read(file, name)) for name, file, _ in stored))


def _add_shape(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    """Write what the head says of a plain decoder with rotary positions."""
    rope = config.rope_parameters
    if rope["rope_type"] != "default":
        raise NotSupportedError(f"no GGUF with rope_type {rope['rope_type']!r} is written here")
    heads = config.num_attention_heads
    width = config.to_dict().get("head_dim") or config.hidden_size // heads  # not every configuration has the field
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")  # the comparison feeds token ids


def _stored(folder: Path, tied: bool) -> list[tuple[str, Path, tuple[int, ...]]]:
    """Return name, file and shape of each stored parameter; a tied output layer is not one."""
    found = []
    for file in weight_files(folder, str(folder)):
        with safe_open(file, framework="pt") as weights:
            found += [(name, file, tuple(weights.get_slice(name).get_shape())) for name in sorted(weights.keys())]
    return [entry for entry in found if not (tied and entry[0] == "lm_head.weight")]


def _read(file: Path, name: str) -> np.ndarray:
    with safe_open(file, framework="pt") as weights:
        return weights.get_tensor(name).to(torch.float32).numpy()


def _finish(writer: GGUFWriter, shapes: dict[str, tuple[int, ...]], arrays: Iterator[np.ndarray]) -> None:
    """Write head and weights; one weight is in memory at a time."""
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for name, shape in shapes.items():
        writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for shape, array in zip(shapes.values(), arrays, strict=True):
        writer.write_tensor_data(np.ascontiguousarray(array, np.float32).reshape(shape))
    writer.close()
