"""An earlier run that this one goes on from: its adapter is the start, and what it learned is to be kept.

What it learned are the probes that it answered in full when it was published, from its own account
(`documents/recall.json`). They are asked again at the start, and those that are still answered are a kind of probes
of their own: forgetting what came earlier counts as much as forgetting what the base knew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError
from safetensors.torch import load_file

from budwood import storage
from budwood.data.probes import Probe
from budwood.data.problems import Origin
from budwood.errors import AdapterError, ConfigError
from budwood.methods.taalm.account import RECALL
from budwood.models import fingerprint_file
from budwood.tuning.lesson import AdapterStart

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EarlierRun:
    """A run with an adapter on the same base.

    Attributes:
        path: its folder.
        weights: the file of its adapter's tensors.
        digest: of that file.
        learned: what it had learned, as probes.
    """

    path: Path
    weights: Path
    digest: str
    learned: tuple[Probe, ...]

    @classmethod
    def read(cls, start: AdapterStart) -> EarlierRun:
        """Read a run.

        Raises:
            AdapterError: its adapter is no PEFT adapter, or its account cannot be read.
        """
        path, weights = start.run, start.adapter / SAFETENSORS_WEIGHTS_NAME
        if not weights.is_file():
            raise AdapterError(f"{path} holds no PEFT adapter", wanted="a run with one adapter to go on from")
        learned = _learned(path / RECALL)
        if not learned:
            log.warning("%s learned nothing from documents: whether what it holds is kept is not measured", path)
        return cls(path, weights, fingerprint_file(weights), learned)

    def require_fitting(self, model: PeftModel) -> None:
        """Refuse another adapter than the run's.

        Args:
            model: with a fresh adapter, perhaps without weights (on the meta device).

        Raises:
            AdapterError: the file is damaged.
            ConfigError: the tensors have other names or shapes.
        """
        given = {name: tuple(tensor.shape) for name, tensor in self._tensors().items()}
        wanted = {name: tuple(tensor.shape) for name, tensor in _state(model).items()}
        if given != wanted:
            name = min(n for n in given.keys() | wanted.keys() if given.get(n) != wanted.get(n))
            raise ConfigError(
                f"the adapter of {self.path} is of another form: {name} is {given.get(name, 'missing')}",
                wanted=f"{wanted.get(name, 'no such tensor')} with these settings",
                action=f"give the tuner and the settings of that run ({self.path / 'recipe.yaml'})",
            )

    def put_into(self, model: PeftModel) -> None:
        """Copy the run's tensors into a fresh adapter of the same form."""
        self.require_fitting(model)
        set_peft_model_state_dict(model, self._tensors())

    def _tensors(self) -> dict[str, torch.Tensor]:
        try:
            return load_file(self.weights)
        except (OSError, SafetensorError) as error:
            raise AdapterError(
                f"{self.weights} cannot be read: {error}", wanted="the file that the run wrote"
            ) from error


def _state(model: PeftModel) -> dict[str, torch.Tensor]:
    # save_embedding_layers=False: as in what is published; "auto" asks the hub about the base.
    found: dict[str, torch.Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    return found


def _learned(path: Path) -> tuple[Probe, ...]:
    """Return the probes that a run answered in full at its end, of what it was to learn or had learned before."""
    if not path.is_file():
        return ()
    try:
        told = storage.read_json(path)["probes"]
        asked = [one for kind in ("own_words", "other_words", "earlier") for one in told.get(kind, [])]
        return tuple(_probe(one, Origin(str(path))) for one in asked if one["after"] == 1)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdapterError(
            f"{path} cannot be read: {type(error).__name__}: {error}",
            wanted="the account that `budwood adapt --documents` writes",
            action="make that run again, or remove the file: then nothing is measured of what it learned",
        ) from error


def _probe(record: Mapping[str, Any], origin: Origin) -> Probe:
    start, stop = record["target"]
    return Probe(str(record["text"]), (int(start), int(stop)), origin)
