"""`Run`: what an adaptation leaves behind, or any PEFT folder: load it, verify it, export it."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from budwood import _published, facts, peft
from budwood.data.render import Renderer
from budwood.errors import AdapterError, BaseMismatchError, NotSupportedError, UsageError, nearest
from budwood.export.card import CardFacts
from budwood.export.checks import Check, VerifyReport
from budwood.export.dequantised import OnQuantised, dense_twin
from budwood.export.foreign import AdapterInfo
from budwood.export.gguf_lora import export_gguf
from budwood.export.gguf_verify import verify_gguf
from budwood.export.logits import adapted_logits, base_logits, exact_logits, probe_inputs
from budwood.export.merged import export_merged, verify_merged
from budwood.export.portable import export_lora
from budwood.export.prompts import VECTORS as PROMPT_VECTORS
from budwood.export.prompts import export_prompts
from budwood.export.result import ExportResult
from budwood.export.verify import NativeBase, verify_portable
from budwood.facts import AdapterFacts
from budwood.models import Base, Source, load_base, locate
from budwood.models.quantisation import is_quantised
from budwood.storage import guarded
from budwood.training.folder import RunFolder, read_metrics, read_status

log = logging.getLogger(__name__)
EXPORTS = ("lora", "gguf", "merged", "prompts")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
REGISTER = "budwood.peft:register"


@dataclass(frozen=True)
class Loaded:
    """An adapter on its base, ready to be used."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    base: Base
    renderer: Renderer


@dataclass(frozen=True)
class Run:
    """A run folder or a PEFT folder, with the base that it belongs to. Made by `open_run` and `adapt`.

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

    @property
    def status(self) -> dict[str, Any]:
        """The state of the run; empty where there is no run around the adapter."""
        return read_status(self.path) if self.adapter != self.path else {}

    def summary(self) -> dict[str, Any]:
        """Return what a reader wants to know first."""
        return {
            "base": str(self.source.reference),
            "method": self.facts.method if self.facts else None,
            "tuner": self.facts.tuner if self.facts else self.info.peft_type.lower(),
            "trainable_params": self.facts.trainable_parameters if self.facts else None,
            "adapter_bytes": self.info.bytes,
            **self.metrics,
        }

    def load(self, *, dtype: str = "auto", device: str = "auto") -> tuple[nn.Module, PreTrainedTokenizerBase]:
        """Return the model with its adapter, in evaluation mode, and its tokenizer.

        It is a `PeftModel`; for a bank of soft prompts it is a `PromptBank`, which has `generate` and `forward` too.

        Args:
            dtype: "auto" is what the adapter was trained in, or else what suits the device.
            device: "auto", "cpu", "cuda", "mps", …
        """
        loaded = self.open(dtype=dtype, device=device)
        return loaded.model, loaded.tokenizer

    def open(self, *, dtype: str = "auto", device: str = "auto") -> Loaded:
        """As `load`, with the base and the renderer of text beside it."""
        self.info.require("load")
        return self._dressed(self._base(dtype, device))

    def _open_plain(self, *, exact: bool) -> Loaded:
        """As `open`, for exports: on plain layers; in fp32 on the CPU if they must be `exact`.

        A quantised base is loaded as it was trained on, and then dequantised.
        """
        if is_quantised(self.source):
            return self._dressed(dense_twin(self._base(), torch.float32 if exact else None))
        return self.open(dtype="float32", device="cpu") if exact else self.open()

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

    def verify(self, *, portable: bool = True) -> VerifyReport:
        """Check that the saved adapter loads elsewhere and does what it does here.

        Args:
            portable: also convert it into a portable LoRA and check that one in a process without budwood; where the
                adapter cannot become a LoRA, the reason is a note and not a failure.
        """
        try:
            loaded = self.open()
        except AdapterError as error:  # to find this out is what was asked for
            return VerifyReport((*self._unchanged(), Check("it loads", False, note=error.got)))
        inputs = probe_inputs(loaded.tokenizer, seed=0)
        native = _published.verify(loaded.model, self.adapter, native_base(loaded.base), inputs)
        report = VerifyReport((*self._unchanged(), *map(_as_two_loads, native.checks)))
        if not portable:
            return report
        loaded = self._open_plain(exact=False) if is_quantised(self.source) else loaded
        with tempfile.TemporaryDirectory(prefix="budwood-") as folder:
            try:
                _published.require_change_of_weights(self.adapter, "lora")
                self._portable(loaded, Path(folder) / "lora")
            except NotSupportedError as error:
                return VerifyReport((*report.checks, Check("portable LoRA", True, "not possible", note=error.got)))
            checks = self._check_portable(loaded, Path(folder) / "lora", inputs).checks
        return VerifyReport((*report.checks, *checks))

    def export(self, kind: str, out: str | Path, *, dtype: str = "auto", force: bool = False) -> ExportResult:
        """Write the adapter in a form that other software reads, and verify it there.

        Args:
            kind: "lora", a portable PEFT LoRA; "gguf", a LoRA for llama.cpp; "merged", the base with it merged in;
                "prompts", soft prompts as PEFT folders and as vectors for servers that take embeddings.
            out: the folder to write; for "gguf" the file, or a folder for it.
            dtype: "float32", "bfloat16" or "float16"; "auto" is float32, and for "merged" what the base is stored in.
            force: replace what is there; merge a quantised base also where that changes the answers beyond the limit.

        Raises:
            NotSupportedError: this adapter cannot take that form; the message says why.
            VerificationError: what was written does not compute what the adapter computes; nothing is left at `out`.
        """
        if kind not in EXPORTS:
            raise NotSupportedError(f"there is no export to {kind!r}", action=nearest(kind, EXPORTS))
        if dtype != "auto" and dtype not in DTYPES:
            raise UsageError(f"no export in {dtype!r}", wanted=nearest(dtype, ["auto", *DTYPES]))
        if kind != "prompts":
            _published.require_change_of_weights(self.adapter, kind)
        self._refuse_place(kind, Path(out))
        write = {
            "lora": self._to_lora, "gguf": self._to_gguf, "merged": self._to_merged, "prompts": self._to_prompts,
        }[kind]  # fmt: skip
        return write(Path(out), DTYPES.get(dtype), force)

    def _to_lora(self, out: Path, dtype: torch.dtype | None, replace: bool) -> ExportResult:
        self.info.require("export")
        loaded = self._open_plain(exact=False)
        inputs = probe_inputs(loaded.tokenizer, seed=0)
        return self._portable(
            loaded,
            out,
            dtype=dtype or torch.float32,
            replace=replace,
            inspect=lambda folder: self._check_portable(loaded, folder, inputs).require(),
        )

    def _to_gguf(self, out: Path, dtype: torch.dtype | None, replace: bool) -> ExportResult:
        self.info.require("export")
        loaded = self._open_plain(exact=True)
        inputs = probe_inputs(loaded.tokenizer, seed=0)
        return export_gguf(
            loaded.model,
            out,
            base_id=self.source.loadable,
            revision=self.source.revision,
            card=self._card(),
            dtype=dtype or torch.float32,
            replace=replace,
            inspect=lambda path: verify_gguf(path, loaded.model, self.source, inputs).require(),
        )

    def _to_merged(self, out: Path, dtype: torch.dtype | None, replace: bool) -> ExportResult:
        loaded = self._open_plain(exact=True)
        inputs = probe_inputs(loaded.tokenizer, seed=0)
        trained = self._on_quantised(inputs) if is_quantised(self.source) else None
        adapted, base = adapted_logits(loaded.model, inputs), base_logits(loaded.model, inputs)
        return export_merged(
            loaded.model,
            self.source,
            out,
            card=self._card(),
            tokenizer=loaded.tokenizer,
            dtype=dtype,
            replace=replace,
            inspect=lambda folder: verify_merged(
                folder, adapted, base, inputs, trained=trained, accept=replace
            ).require(),
        )

    def _to_prompts(self, out: Path, dtype: torch.dtype | None, replace: bool) -> ExportResult:
        self.info.require("export")
        folders = _published.prompt_folders(self.adapter)
        loaded = self.open()
        return export_prompts(
            folders,
            loaded.base.model,
            out,
            base_id=self.source.loadable,
            revision=self.source.revision,
            card=self._card(),
            dtype=dtype or loaded.base.model.dtype,
            replace=replace,
            inputs=probe_inputs(loaded.tokenizer, seed=0),
        )

    def _on_quantised(self, inputs: Tensor) -> OnQuantised:
        model = self.open().model
        ids = inputs.to(model.device)
        return OnQuantised(adapted_logits(model, ids), base_logits(model, ids))

    def _portable(self, loaded: Loaded, folder: Path, **options: Any) -> ExportResult:
        return export_lora(
            loaded.model,
            folder,
            base_id=self.source.loadable,
            revision=self.source.revision,
            card=self._card(),
            tokenizer=loaded.tokenizer,
            **options,
        )

    def _unchanged(self) -> tuple[Check, ...]:
        """Check that the weights are the published ones, which were held against the trained model."""
        name = "the weights are those that were published"
        if not self.facts or not self.facts.adapter_sha256:
            return (Check(name, True, "not known", note="no hash was kept with this adapter"),)
        found = facts.weights_hash(self.adapter)
        return (Check(name, found == self.facts.adapter_sha256, found[:12], note="SHA-256 of the file"),)

    def _refuse_place(self, kind: str, out: Path) -> None:
        """Refuse to replace anything but an earlier export, and to write over or around the adapter itself."""
        place, own = out.resolve(), (self.path.resolve(), self.adapter.resolve())
        if any(place == folder or place in folder.parents for folder in own) or place == own[1].parent:
            raise UsageError(f"{out} holds the adapter that is to be exported", action="choose another place")
        mark = {"merged": "config.json", "prompts": PROMPT_VECTORS}.get(kind, "adapter_config.json")
        if out.is_dir() and kind != "gguf" and any(out.iterdir()) and not (out / mark).is_file():
            raise UsageError(
                f"{out} holds files that are no earlier export",
                wanted="a new place, or an export to replace",
                action="choose another place",
            )

    def _check_portable(self, loaded: Loaded, folder: Path, inputs: Tensor) -> VerifyReport:
        wanted = adapted_logits(loaded.model, inputs.to(loaded.model.device))
        with self._plain_base() as base:
            return verify_portable(
                folder,
                base,
                wanted,
                inputs,
                loaded.model.dtype,
                exact=lambda: exact_logits(loaded.model, inputs.to(loaded.model.device)),
            )

    @contextlib.contextmanager
    def _plain_base(self) -> Iterator[Path]:
        """Give a folder with the base in plain layers; for a quantised one it is written, and removed afterwards."""
        if not is_quantised(self.source):
            yield self.source.folder
            return
        with tempfile.TemporaryDirectory(prefix="budwood-base-") as place:
            with guarded(place):
                dense_twin(self._base()).model.save_pretrained(place)
            yield Path(place)

    def _card(self) -> CardFacts:
        if self.facts:
            return self.facts.card(self.metrics)
        return CardFacts(method=self.info.peft_type.lower(), base=str(self.source.reference))


def _as_two_loads(check: Check) -> Check:
    """Word a check of a loaded adapter for what it is: the trained model is gone, two loads are compared."""
    words = {
        "logits equal the trained model's": "two loads compute the same logits",
        "the base is the same": "two loads of the base agree",
    }
    return replace(check, name=words.get(check.name, check.name))


def native_base(base: Base) -> NativeBase:
    """Return how a fresh process gets the same base."""
    return NativeBase(
        reference=str(base.source.reference),
        dtype=str(base.model.dtype).removeprefix("torch."),
        attention=base.model.config._attn_implementation,
        register=REGISTER,
    )


def open_run(path: str | Path, *, base: str | None = None, force: bool = False) -> Run:
    """Open a run folder, or any PEFT adapter folder, also one that was not made by budwood.

    Args:
        path: RUN, or a folder with adapter_config.json.
        base: the base model, where the folder does not say it or another place holds it.
        force: accept a base whose weights differ from those the adapter was made on.

    Raises:
        AdapterError: there is no adapter, or it cannot be read.
        BaseMismatchError: the base has other weights.
    """
    path = Path(path)
    peft.register()
    adapter = _adapter_folder(path)
    info, said = _published.describe(adapter), facts.read(adapter)
    reference = base or (said.base if said else info.base_id)
    if not reference:
        raise AdapterError(f"{adapter} does not say which base it belongs to", action="name it with --base MODEL")
    revision = said.revision if said else info.revision
    source = locate(_with_revision(reference, revision) if base is None else reference)
    if said:
        _check_base(said, source, force)
    return Run(path, adapter, source, info, said, force)


def _with_revision(reference: str, revision: str | None) -> str:
    is_hub_id = reference.count("/") == 1 and not Path(reference).exists()
    return f"{reference}@{revision}" if revision and is_hub_id and "@" not in reference else reference


def _adapter_folder(path: Path) -> Path:
    for folder in (path / "adapter", path):
        if _published.is_published(folder):
            return folder
    if (path / "status.json").is_file():
        state = read_status(path)["state"]
        raise AdapterError(
            f"the run {path} is {state} and has no adapter yet",
            wanted="a run that is done",
            action="wait for it" if state == "running" else f"go on with `{RunFolder(path).resume_command}`",
        )
    if not path.exists():
        raise AdapterError(f"{path} does not exist", wanted="a run, or a PEFT adapter folder")
    raise AdapterError(f"{path} holds no adapter", wanted="adapter/ or adapter_config.json in it")


def _check_base(said: AdapterFacts, source: Source, force: bool) -> None:
    if said.fingerprint == source.fingerprint:
        return
    text = f"the adapter was made on {said.base} ({said.fingerprint[:12]}), this base is {source.fingerprint[:12]}"
    if force:
        log.warning("%s; used all the same", text)
        return
    raise BaseMismatchError(
        text,
        wanted="the same weights",
        action="give the right base with --base, or --force if the difference does not matter",
    )
