"""An adapter that was saved, opened: on its base, with the text rendered as in training. `run.Run` stands on this."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from budwood import _published, peft
from budwood.data.render import Renderer
from budwood.export.card import CardFacts
from budwood.export.dequantised import dense_twin
from budwood.export.foreign import AdapterInfo
from budwood.export.verify import NativeBase
from budwood.facts import AdapterFacts
from budwood.models import Base, Source, load_base
from budwood.models.quantisation import is_quantised
from budwood.storage import guarded
from budwood.training.folder import RunFolder, read_metrics

log = logging.getLogger(__name__)
REGISTER = "budwood.peft:register"


@dataclass(frozen=True)
class Loaded:
    """An adapter on its base, ready to be used."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    base: Base
    renderer: Renderer


@dataclass(frozen=True)
class Saved:
    """A folder with an adapter, and the base that it belongs to.

    Args:
        path: the folder as the user named it.
        adapter: the PEFT folder; `path` itself where there is no run around it.
        source: the base.
        info: what PEFT's files say.
        facts: what `budwood.json` says; None for a folder made elsewhere.
        force: whether another base than that of the training was asked for.
    """

    path: Path
    adapter: Path
    source: Source
    info: AdapterInfo
    facts: AdapterFacts | None
    force: bool = False

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The content of metrics.json; empty where there is no run around the adapter."""
        return read_metrics(self.path) if self.adapter != self.path else {}

    def open(self, *, dtype: str = "auto", device: str = "auto") -> Loaded:
        """Return the model with its adapter, in evaluation mode, with base, tokenizer and renderer beside it.

        Args:
            dtype: "auto" is what the adapter was trained in, or else what suits the device.
            device: "auto", "cpu", "cuda", "mps", …
        """
        self.info.require("load")
        return self._dressed(self._base(dtype, device))

    def open_plain(self, *, exact: bool) -> Loaded:
        """As `open`, for exports: on plain layers; in fp32 on the CPU if they must be `exact`.

        A quantised base is loaded as it was trained on, and then dequantised.
        """
        if is_quantised(self.source):
            return self._dressed(dense_twin(self._base(), torch.float32 if exact else None))
        return self.open(dtype="float32", device="cpu") if exact else self.open()

    @contextlib.contextmanager
    def plain_base(self) -> Iterator[Path]:
        """Give a folder with the base in plain layers; for a quantised one it is written, and removed afterwards."""
        if not is_quantised(self.source):
            yield self.source.folder
            return
        with tempfile.TemporaryDirectory(prefix="budwood-base-") as place:
            with guarded(place):
                dense_twin(self._base()).model.save_pretrained(place)
            yield Path(place)

    def card(self) -> CardFacts:
        """Return what a model card states."""
        if self.facts:
            return self.facts.card(self.metrics)
        return CardFacts(method=self.info.peft_type.lower(), base=str(self.source.reference))

    def _base(self, dtype: str = "auto", device: str = "auto") -> Base:
        if dtype == "auto" and self.facts:
            dtype = self.facts.dtype
        attention = self.facts.attention if self.facts else "auto"
        return load_base(self.source, dtype=dtype, device=device, attention=attention)

    def _dressed(self, base: Base) -> Loaded:
        """Put the adapter onto the base."""
        peft.register()
        model = _published.load(base, self.adapter, force=self.force)
        template, system = (self.facts.template, self.facts.system) if self.facts else ("auto", None)
        renderer = Renderer(base.tokenizer, template, system)
        if self.facts and renderer.template_hash != self.facts.template_hash:
            log.warning("text is rendered otherwise than in training: the tokenizer or its chat template has changed")
        return Loaded(model, base.tokenizer, base, renderer)


def repair(path: Path, adapter: Path) -> str:
    """Return how a damaged adapter is made whole again; empty where there is no run around it to make it."""
    run = RunFolder(path)
    has_run = adapter != path and run.checkpoints.is_dir()
    return f"`{run.resume_command}` makes it again from the run's checkpoints" if has_run else ""


def native_base(base: Base) -> NativeBase:
    """Return how a fresh process gets the same base."""
    return NativeBase(
        reference=str(base.source.reference),
        dtype=str(base.model.dtype).removeprefix("torch."),
        attention=base.model.config._attn_implementation,
        register=REGISTER,
    )
