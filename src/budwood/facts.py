"""What an adapter folder says about itself, beyond what PEFT keeps: `budwood.json`, and the saving of the folder.

The folder is an ordinary PEFT folder with tokenizer files; `budwood.json` adds which base it was made on (with a
fingerprint) and how text is rendered. A folder from elsewhere has no such file, and works without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from budwood import __version__, storage
from budwood.data.settings import Template
from budwood.errors import AdapterError
from budwood.export.card import CardFacts, CardUse, model_card
from budwood.models import Base, fingerprint_file, fingerprint_files
from budwood.tuning.attach import quiet_peft
from budwood.tuning.registry import method_of, methods

FILE = "budwood.json"
WEIGHTS = "adapter_model.safetensors"
FORMAT = 1


class AdapterFacts(BaseModel):
    """The content of `budwood.json`. Unknown keys of later versions are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: int = FORMAT
    budwood: str = __version__
    base: str
    revision: str | None = None
    fingerprint: str
    method: str
    tuner: str
    settings: dict[str, Any]
    dtype: str
    attention: str
    template: Template
    system: str | None = None
    template_hash: str
    seed: int
    trainable_parameters: int
    adapter_sha256: str = ""  # of the weights as they were published

    def card(self, metrics: dict[str, Any]) -> CardFacts:
        """Return what the model card states; of the metrics, those that are numbers."""
        method = methods().get(self.method)
        return CardFacts(
            method=self.method,
            tuner=self.tuner,
            base=self.base,
            revision=self.revision or "",
            fingerprint=self.fingerprint,
            paper=method.paper if method else "",
            bibtex=method.bibtex if method else "",
            recipe=self.settings | {"seed": self.seed},
            metrics={name: value for name, value in metrics.items() if isinstance(value, int | float)},
            trainable_parameters=self.trainable_parameters,
            budwood_version=self.budwood,
        )


def read(folder: Path) -> AdapterFacts | None:
    """Return the facts of an adapter folder; None where it has none because it was not made here.

    Raises:
        AdapterError: the file is there but cannot be used.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        facts = AdapterFacts.model_validate(storage.read_json(path))
    except (OSError, ValueError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise AdapterError(f"{path} cannot be read: {first}", action="restore the file, or remove it") from None
    if facts.format > FORMAT:
        raise AdapterError(
            f"{path} has format {facts.format}", wanted=f"at most {FORMAT}", action="install a newer budwood"
        )
    return facts


def save(folder: Path, model: nn.Module, base: Base, facts: AdapterFacts, metrics: dict[str, Any]) -> None:
    """Write adapter, tokenizer, template, facts and card into `folder`, which the caller makes whole.

    Args:
        model: a `PeftModel` with one adapter called "default", or what the method of `facts` publishes in its stead.
    """
    with storage.guarded(folder), quiet_peft():
        use = _save_weights(folder, model, base, facts)
        base.tokenizer.save_pretrained(folder)
    facts = facts.model_copy(update={"adapter_sha256": weights_hash(folder)})
    storage.write_json(folder / FILE, facts.model_dump(mode="json"))
    storage.write_text(folder / "README.md", model_card(facts.card(metrics), use))


def _save_weights(folder: Path, model: nn.Module, base: Base, facts: AdapterFacts) -> CardUse:
    """Write what was learned; return how it is used."""
    commands = {"budwood": f"model, tokenizer = {_OPEN}.load()"}
    load_format = methods()[facts.method].load_format
    if load_format is not None:
        load_format().save(model, folder, base)
        return CardUse("CAUSAL_LM", commands, kind="prompts")
    config = model.peft_config["default"]
    config.base_model_name_or_path, config.revision = base.source.loadable, facts.revision
    # save_embedding_layers=False: budwood never resizes a vocabulary, and "auto" asks the hub about the base.
    model.save_pretrained(folder, save_embedding_layers=False)
    return CardUse(str(config.task_type or ""), commands)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of an adapter folder that hold what was learned.

    Raises:
        AdapterError: one of them is missing.
    """
    method = method_of(folder)
    return method.load_format().weights(folder) if method and method.load_format else [folder / WEIGHTS]


def weights_hash(folder: Path) -> str:
    """Return the SHA-256 of what was learned."""
    files = weight_files(folder)
    return fingerprint_file(files[0]) if len(files) == 1 else fingerprint_files(files)


_OPEN = 'budwood.open_run("PATH/OF/THIS/FOLDER")'
