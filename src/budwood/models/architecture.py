"""Which transformers class a model folder asks for, before any weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from budwood.errors import ModelError, nearest
from budwood.models.borders import loading_errors
from budwood.models.files import CONFIG
from budwood.storage import read_json

_AUTO: tuple[type, ...] = (AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModel)


def read_config(folder: Path, *, trust_remote_code: bool) -> PreTrainedConfig:
    """Return the configuration in a model folder.

    A model type that transformers knows is read by transformers, whatever code the folder brings.

    Raises:
        ModelError: damaged, of an unknown model type, or in need of the folder's own code without leave to run it.
    """
    path = folder / CONFIG
    try:
        values = read_json(path)
        kind, own_code = values.get("model_type"), values.get("auto_map")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read: {error}", wanted="a JSON object") from error
    known = kind in CONFIG_MAPPING
    if not known and own_code and not trust_remote_code:
        raise ModelError(
            f"{folder} needs code of its own to be loaded (model type {kind!r})",
            action="read that code; if you trust it, pass trust_remote_code=True (--trust-remote-code)",
        )
    if not known and not own_code:
        raise ModelError(
            f"transformers {transformers.__version__} knows no model type {kind!r}, which {path} asks for",
            wanted=_short(nearest(str(kind), CONFIG_MAPPING)),
            action="a newer transformers may know it; or correct model_type",
        )
    with loading_errors(str(path)):
        return AutoConfig.from_pretrained(folder, trust_remote_code=not known, local_files_only=True)


def _short(hint: str) -> str:
    """The nearest name without the list of all: transformers knows hundreds."""
    return hint.partition("?")[0] + "?" if "?" in hint else "a model type that transformers knows"


def model_class(config: PreTrainedConfig) -> Any:
    """Return the class that loads `config`: the one it names if transformers has it, else an Auto class.

    Without a name: causal LM first, then encoder-decoder, then the bare model.
    """
    for name in config.architectures or ():
        found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, PreTrainedModel):
            return found
    if not is_native(config):
        return next((auto for auto in _AUTO if auto.__name__ in config.auto_map), AutoModel)
    if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not config.is_encoder_decoder:
        return AutoModelForCausalLM
    seq2seq = config.model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    return AutoModelForSeq2SeqLM if seq2seq else AutoModel


def is_native(config: PreTrainedConfig) -> bool:
    """Whether the configuration's class belongs to transformers, not to a model folder's own code."""
    return type(config).__module__.startswith("transformers.models.")
