"""A base model in memory: frozen, in evaluation mode, on its device, with its tokenizer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from budwood.errors import ModelError, UsageError, nearest
from budwood.models.architecture import is_native, model_class, read_config
from budwood.models.borders import loading_errors, quiet_transformers
from budwood.models.precision import choose_device, choose_dtype
from budwood.models.quantisation import check_quantisation, quantisation_options
from budwood.models.quantised import settle_quantised
from budwood.models.reference import ModelReference
from budwood.models.source import Source, locate

log = logging.getLogger(__name__)

ATTENTIONS = ("auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")

_TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")


@dataclass(frozen=True)
class Base:
    """A pretrained model, frozen, and what belongs to it.

    Args:
        model: in evaluation mode, no parameter asks for gradients.
        tokenizer: with a pad token; None for a model that reads no text (ViT).
        source: where the weights came from.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: Source


def load_config(source: Source, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Return the model's configuration.

    Args:
        source: what `locate` returned.
        trust_remote_code: whether code that lies beside the weights may run; needed by model types that transformers
            does not know, and used for those only.

    Raises:
        ModelError: damaged, of an unknown model type, or in need of its own code without leave.
    """
    return read_config(source.folder, trust_remote_code=trust_remote_code)


def load_tokenizer(source: Source, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Return the model's tokenizer. It always has a pad token that the model has an embedding for.

    If the folder names none, the end token serves: budwood masks by position, so padding is never mistaken for an
    end. Embeddings are never resized, because an adapter could not carry that.

    Raises:
        ModelError: there is no tokenizer, or it cannot be read.
    """
    if not _has_tokenizer(source.folder):
        raise ModelError(
            f"{source.folder} has no tokenizer",
            wanted=f"one of {', '.join(_TOKENIZER_FILES)}",
            action="copy the tokenizer's files beside the weights",
        )
    config = load_config(source, trust_remote_code=trust_remote_code)
    with loading_errors(f"the tokenizer in {source.folder}"):
        tokenizer = AutoTokenizer.from_pretrained(
            source.folder, config=config, trust_remote_code=not is_native(config), local_files_only=True
        )
    _settle_padding(tokenizer, config)
    return tokenizer


def _has_tokenizer(folder: Path) -> bool:
    return any(path for pattern in _TOKENIZER_FILES for path in folder.glob(pattern))


def _settle_padding(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    rows = config.get_text_config().to_dict().get("vocab_size", len(tokenizer))
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, 0)
    chosen = next(token for token in candidates if token is not None and token < rows)
    if chosen != tokenizer.pad_token_id:
        log.info("the tokenizer has no usable pad token; %r serves", tokenizer.convert_ids_to_tokens(chosen))
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(chosen)


def load_base(
    source: Source | ModelReference | str,
    *,
    dtype: str | torch.dtype = "auto",
    device: str = "auto",
    attention: str = "auto",
    trust_remote_code: bool = False,
) -> Base:
    """Load a base model and its tokenizer.

    Args:
        source: a located model, or a reference to locate first.
        dtype: "auto", or the precision of the weights; see `choose_dtype`.
        device: "auto", or a device; see `choose_device`.
        attention: "auto", or one of `ATTENTIONS`. Auto is SDPA where the architecture has it, else eager. On a CPU
            that is not a loss for short windows either: forward and backward of SmolLM2-135M (q and v trained, 8 x 64
            tokens, fp32, one AVX2 core, best of 8) took 5.36 s with SDPA and 5.37 s with eager attention when padded,
            4.95 s and 5.33 s without padding, and at 4 x 256 tokens 14.7 s and 20.4 s.
        trust_remote_code: see `load_config`.

    Raises:
        ModelError: it cannot be found or loaded.
        OutOfMemoryError: it does not fit.
        UsageError: an unknown precision, device or attention.
    """
    place = choose_device(device)
    precision = choose_dtype(dtype, place)
    if attention not in ATTENTIONS:
        raise UsageError(f"no attention called {attention!r}", wanted=nearest(attention, ATTENTIONS))
    source = source if isinstance(source, Source) else locate(source)
    config = load_config(source, trust_remote_code=trust_remote_code)
    options: dict[str, Any] = {"dtype": precision}
    if attention != "auto":
        options["attn_implementation"] = attention
    options |= quantisation_options(source.reference, config, precision)
    # A device map on a plain CPU model would only puzzle the Trainer.
    if "quantization_config" in options or place.type != "cpu":
        options["device_map"] = {"": place}
    model = _load_model(source, config, options)
    reads_text = model.main_input_name == "input_ids" or _has_tokenizer(source.folder)
    tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code) if reads_text else None
    return Base(model, tokenizer, source)


def _load_model(source: Source, config: PreTrainedConfig, options: dict[str, Any]) -> PreTrainedModel:
    """Read the weights; a weight that the files lack is an error, not a random number."""
    if not is_native(config):
        options = options | {"trust_remote_code": True}
    with loading_errors(str(source.reference)), quiet_transformers():
        model, report = model_class(config).from_pretrained(
            source.folder,
            config=config,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"{source.reference} lacks {len(missing)} weights of {type(model).__name__}, first {missing[0]}",
            wanted="weights and configuration of the same model",
            action="check 'architectures' in its config.json, and that the copy is complete",
        )
    if unexpected := sorted(report["unexpected_keys"]):
        log.warning("%s: %d weights are not used, first %s", source.reference, len(unexpected), unexpected[0])
    return settle_quantised(model, options["dtype"]).requires_grad_(False).eval()


def empty_model(source: Source, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """Return the model's modules on the meta device: shapes without weights, in no time and no memory.

    A quantised base has plain layers there.

    Raises:
        ModelError: as `load_config`, and where `load_base` could not quantise the weights or read quantised ones.
    """
    config = load_config(source, trust_remote_code=trust_remote_code)
    check_quantisation(source.reference, config)
    made = model_class(config)
    with loading_errors(str(source.reference)), torch.device("meta"):
        if issubclass(made, PreTrainedModel):
            model = made(config)
        else:
            model = made.from_config(config, trust_remote_code=not is_native(config))
    return model.requires_grad_(False).eval()
