"""A bank as a folder: ordinary PEFT prompt-tuning adapters, and `selector.json` with what chooses among them.

FOLDER/selector.json              order of the prompts, selector with its calibration, fingerprint of the base
FOLDER/bank/NAME/                 one prompt, as `PeftModel.from_pretrained` reads it
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import torch
from peft import PeftConfig
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from budwood import storage
from budwood.errors import AdapterError, BaseMismatchError, NotSupportedError, UsageError
from budwood.methods.idp.runtime import Prompt
from budwood.methods.idp.selectors import AttentionSelector, LikelihoodSelector, RouterSelector
from budwood.tuning.soft_prompts import VECTORS

SELECTOR, PROMPTS = "selector.json", "bank"
CONFIG, WEIGHTS, KEY = "adapter_config.json", "adapter_model.safetensors", "prompt_embeddings"
FACTS = "budwood.json"  # of an adapter that was trained here; it may be missing
FORMAT = 1

AnySelector: TypeAlias = Annotated[
    AttentionSelector | LikelihoodSelector | RouterSelector, Field(discriminator="name")
]


class BankFacts(BaseModel):
    """The content of `selector.json`. Unknown keys of later versions are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: int = FORMAT
    prompts: list[str] = Field(min_length=1)
    base: str = ""
    fingerprint: str | None = None
    selector: AnySelector


def read_prompt(
    folder: Path, model: PreTrainedModel, *, name: str = "", fingerprint: str | None = None, force: bool = False
) -> Prompt:
    """Read one prompt and hold it against the base.

    Args:
        folder: a PEFT adapter folder, or a run that has one.
        model: the base.
        name: what the bank calls it; the folder's name by default.
        fingerprint: of the base's weights, where it is known.
        force: accept a prompt that was made on other weights of the same shape.

    Raises:
        AdapterError: missing, damaged, or of a width that the base does not have.
        BaseMismatchError: it was made on another base.
        NotSupportedError: an adapter that is no soft prompt.
    """
    name = name or folder.resolve().name
    inner = folder / "adapter"
    folder = inner if (inner / CONFIG).is_file() else folder
    config = _read_config(name, folder)
    if config.peft_type not in VECTORS:
        raise NotSupportedError(
            f"the prompt {name!r} is an adapter of kind {str(config.peft_type.value).lower()}",
            wanted="prompt tuning or P-tuning: a bank holds vectors that stand in front of the text",
            action=f"leave {folder} out",
        )
    vectors = _read_vectors(name, folder)
    if vectors.ndim != 2 or len(vectors) != config.num_virtual_tokens or not torch.isfinite(vectors).all():
        raise AdapterError(
            f"the prompt {name!r} holds {tuple(vectors.shape)} numbers, not all of them finite or in their place",
            wanted=f"{config.num_virtual_tokens} vectors, as its configuration says",
            action=f"restore {folder}",
        )
    _check_base(name, folder, config, vectors, model, fingerprint, force)
    return Prompt(name, vectors, config)


def _read_config(name: str, folder: Path) -> PeftConfig:
    if not (folder / CONFIG).is_file():
        raise AdapterError(f"the prompt {name!r} is missing: there is no {folder / CONFIG}", action="restore it")
    try:
        return PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise AdapterError(
            f"the prompt {name!r} is damaged: {folder / CONFIG} cannot be read: {first}", action="restore it"
        ) from error


def _read_vectors(name: str, folder: Path) -> Tensor:
    try:
        return load_file(folder / WEIGHTS)[KEY].float()
    except FileNotFoundError as error:
        raise AdapterError(f"the prompt {name!r} is missing {folder / WEIGHTS}", action="restore it") from error
    except KeyError as error:
        raise AdapterError(f"the prompt {name!r} is damaged: {folder / WEIGHTS} holds no {KEY}") from error
    except (OSError, SafetensorError) as error:
        raise AdapterError(
            f"the prompt {name!r} is damaged: {folder / WEIGHTS} cannot be read: {error}", action="restore it"
        ) from error


def _check_base(
    name: str,
    folder: Path,
    config: PeftConfig,
    vectors: Tensor,
    model: PreTrainedModel,
    fingerprint: str | None,
    force: bool,
) -> None:
    """Refuse a prompt of another width or depth; and one of other weights, as far as that can be known."""
    width, layers = model.get_input_embeddings().embedding_dim, model.config.get_text_config().num_hidden_layers
    if vectors.shape[1] != width or (config.num_layers or layers) != layers:
        raise BaseMismatchError(
            f"the prompt {name!r} has width {vectors.shape[1]}, for a base of {config.num_layers} layers",
            wanted=f"width {width} and {layers} layers, as {type(model).__name__} has here",
            action="give the base that it was trained on",
        )
    made_on, base = _made_on(folder), fingerprint
    if made_on is None or base is None:
        made_on, base = _hub_name(config.base_model_name_or_path), _hub_name(model.name_or_path)
    if made_on and base and made_on != base and not force:
        raise BaseMismatchError(
            f"the prompt {name!r} was made on {made_on[:40]}, this base is {base[:40]}",
            wanted="the same weights",
            action="give the right base, or force=True if the difference does not matter",
        )


def _made_on(folder: Path) -> str | None:
    """Return the fingerprint of the base that an adapter trained here was made on."""
    try:
        return str(storage.read_json(folder / FACTS)["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _hub_name(reference: str | None) -> str | None:
    """Return a hub id; a path says where a copy lies, not what it is."""
    return reference if reference and reference.count("/") == 1 and not Path(reference).exists() else None


def write_bank(folder: Path, prompts: Sequence[Prompt], facts: BankFacts, *, replace: bool) -> None:
    """Write a bank, whole or not at all.

    Raises:
        StorageError: the folder exists and may not be replaced, or the disk fails.
        UsageError: the folder that is to be replaced is no bank.
    """
    if replace and folder.is_dir() and any(folder.iterdir()) and not (folder / SELECTOR).is_file():
        raise UsageError(
            f"{folder} holds files that are no prompt bank",
            wanted="a new place, or a bank to replace",
            action="choose another place",
        )
    with storage.new_folder(folder, replace=replace) as made:
        for prompt in prompts:
            place = made / PROMPTS / prompt.name
            place.mkdir(parents=True)
            prompt.config.save_pretrained(str(place))
            save_file({KEY: prompt.vectors.contiguous()}, place / WEIGHTS, metadata={"format": "pt"})
        storage.write_json(made / SELECTOR, facts.model_dump(mode="json"))


def read_facts(folder: Path) -> BankFacts:
    """Return the content of `selector.json`.

    Raises:
        AdapterError: it is missing, damaged, or of a later version.
    """
    path = folder / SELECTOR
    if not path.is_file():
        raise AdapterError(f"{folder} holds no prompt bank", wanted=f"{SELECTOR} in it")
    try:
        facts = BankFacts.model_validate(storage.read_json(path))
    except (OSError, ValueError, ValidationError) as error:
        raise AdapterError(f"{path} cannot be read: {str(error).splitlines()[0]}", action="restore it") from None
    if facts.format > FORMAT:
        raise AdapterError(
            f"{path} has format {facts.format}", wanted=f"at most {FORMAT}", action="install a newer budwood"
        )
    return facts


def read_bank(
    folder: Path, model: PreTrainedModel, *, fingerprint: str | None = None, force: bool = False
) -> tuple[list[Prompt], BankFacts]:
    """Read the prompts of a bank, in order, and what `selector.json` says.

    Raises:
        AdapterError, BaseMismatchError, NotSupportedError: as `read_prompt` and `read_facts`.
    """
    facts = read_facts(folder)
    if fingerprint and facts.fingerprint and facts.fingerprint != fingerprint and not force:
        raise BaseMismatchError(
            f"the bank {folder} was made on {facts.fingerprint[:12]}, this base is {fingerprint[:12]}",
            wanted="the same weights",
            action="give the right base, or force=True if the difference does not matter",
        )
    places = [(name, folder / PROMPTS / name) for name in facts.prompts]
    return [read_prompt(at, model, name=name, fingerprint=fingerprint, force=force) for name, at in places], facts
