"""A trained scorer as a folder: what `prepare` makes once for a base.

    PRIOR/prior.json              method, base and its fingerprint, hash of the data, body, settings, how it was judged
    PRIOR/weights.safetensors     the trained parameters

Nothing is pickled. Loading builds the body that the settings describe and holds names and shapes against it.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from budwood import storage
from budwood.errors import AdapterError, BaseMismatchError, ConfigError
from budwood.methods.taalm.base import BaseScorer
from budwood.methods.taalm.encoder import EncoderScorer, load_encoder
from budwood.methods.taalm.head import HeadScorer
from budwood.methods.taalm.scorer import TrainableScorer
from budwood.methods.taalm.settings import BodySettings, EncoderSettings, HeadSettings, WeightSettings
from budwood.training.loss import language_model

FACTS, WEIGHTS = "prior.json", "weights.safetensors"
FORMAT = 1


class PriorFacts(BaseModel):
    """The content of `prior.json`. Unknown keys of later versions are ignored.

    Attributes:
        base: the reference of the base that it was made on.
        fingerprint: of that base's weights.
        data: hash of the pairs it was trained on.
        body: which scorer, with its settings.
        weights: how scores become weights, unless the user says otherwise.
        judged: figures of the training, such as the validation alignment beside that of uniform weights.
        seed: of the body and of its training.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: int = FORMAT
    method: Literal["taalm"] = "taalm"
    base: str
    fingerprint: str
    data: str
    body: BodySettings = Field(discriminator="kind")
    weights: WeightSettings = WeightSettings()
    judged: dict[str, float | str] = {}
    seed: int = 0


def make_scorer(model: nn.Module, settings: BodySettings, *, seed: int) -> TrainableScorer:
    """Return an untrained body.

    Args:
        model: the base, bare or with an adapter; not changed. `BaseSettings` copy it.

    Raises:
        ConfigError: a head without layers.
        ModelError: the encoder is not there.
    """
    core = language_model(model)
    if isinstance(settings, HeadSettings):
        if not settings.layers:
            raise ConfigError("the head reads no layer", wanted="`layers`, such as the adapter's lowest")
        return HeadScorer(model, settings, seed=seed)
    if isinstance(settings, EncoderSettings):
        return EncoderScorer(model, *load_encoder(settings.encoder), settings, seed=seed).to(core.device)
    return BaseScorer(copy.deepcopy(core), settings, seed=seed)


def save_prior(folder: Path, scorer: TrainableScorer, facts: PriorFacts, *, replace: bool = False) -> None:
    """Write a prior, whole or not at all.

    Raises:
        StorageError: the folder exists and may not be replaced, or the disk failed.
    """
    with storage.new_folder(folder, replace=replace) as made:
        write_prior(made, scorer, facts)


def write_prior(folder: Path, scorer: TrainableScorer, facts: PriorFacts) -> None:
    """Write the files of a prior into a folder that may hold others; prior.json, which tells a prior, comes last.

    Raises:
        StorageError: the disk failed.
    """
    state = {name: value.contiguous() for name, value in scorer.trained_state().items()}
    with storage.new_file(folder / WEIGHTS, replace=True) as staged:
        save_file(state, staged, metadata={"format": "pt"})
    storage.write_json(folder / FACTS, facts.model_dump(mode="json"))


def load_prior(
    folder: Path, model: nn.Module, *, fingerprint: str, force: bool = False
) -> tuple[TrainableScorer, PriorFacts]:
    """Return the scorer of a prior on a base, frozen, and its facts.

    Args:
        model: the base, as in `make_scorer`.
        fingerprint: of its weights.
        force: take a prior that was made on other weights of the same shape.

    Raises:
        AdapterError: a file is missing or damaged, or of a later version.
        BaseMismatchError: it was made on another base.
        ModelError: its encoder is not there.
    """
    facts = read_facts(folder)
    if facts.fingerprint != fingerprint and not force:
        raise BaseMismatchError(
            f"the prior was made on {facts.base} ({facts.fingerprint[:12]}), this base is {fingerprint[:12]}",
            wanted="the same weights: a scorer reads the base's own states",
            action="prepare one for this base, or force it if the difference does not matter",
        )
    try:
        state = load_file(folder / WEIGHTS)
    except FileNotFoundError as error:
        raise AdapterError(f"the prior {folder} is missing {WEIGHTS}", action="restore it") from error
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{folder / WEIGHTS} cannot be read: {error}", action="restore it") from error
    if not all(bool(torch.isfinite(value).all()) for value in state.values()):
        raise AdapterError(f"{folder / WEIGHTS} holds numbers that are not finite", action="prepare it again")
    scorer = make_scorer(model, facts.body, seed=facts.seed)
    scorer.load_trained_state(state)
    return scorer.requires_grad_(False).eval(), facts


def read_facts(folder: Path) -> PriorFacts:
    """Return the content of `prior.json`.

    Raises:
        AdapterError: it is missing, damaged, of another method, or of a later version.
    """
    path = folder / FACTS
    if not path.is_file():
        raise AdapterError(f"{folder} holds no prior", wanted=f"{FACTS} in it", action="make one with budwood prepare")
    try:
        content: Any = storage.read_json(path)
        facts = PriorFacts.model_validate(content)
    except (OSError, ValueError, ValidationError) as error:
        raise AdapterError(f"{path} cannot be read: {str(error).splitlines()[0]}", action="restore it") from None
    if facts.format > FORMAT:
        raise AdapterError(
            f"{path} has format {facts.format}", wanted=f"at most {FORMAT}", action="install a newer budwood"
        )
    return facts
