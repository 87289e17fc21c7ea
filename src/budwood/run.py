"""`Run`: what an adaptation leaves behind, or any PEFT folder: load it, verify it, export it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from budwood import _exports, _published, _verification, facts, peft
from budwood._request import RECIPE
from budwood._saved import Saved, repair
from budwood.errors import AdapterError, BaseMismatchError, DamagedError
from budwood.export.checks import VerifyReport
from budwood.export.foreign import AdapterInfo
from budwood.export.result import ExportResult
from budwood.facts import AdapterFacts
from budwood.models import Source, locate
from budwood.training.folder import RunFolder, read_status

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run(Saved):
    """A run folder or a PEFT folder, with the base that it belongs to. Made by `open_run` and `adapt`."""

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
        """Return the model with its adapter, in evaluation mode, and its tokenizer; the arguments are those of `open`.

        It is a `PeftModel`; for a bank of soft prompts it is a `PromptBank`, which has `generate` and `forward` too.
        """
        loaded = self.open(dtype=dtype, device=device)
        return loaded.model, loaded.tokenizer

    def verify(self, *, portable: bool = True) -> VerifyReport:
        """Check that the saved adapter loads elsewhere and does what it does here.

        Args:
            portable: also convert it into a portable LoRA and check that one in a process without budwood; where the
                adapter cannot become a LoRA, the reason is a note and not a failure.
        """
        return _verification.verify(self, with_portable=portable)

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
        return _exports.export(self, kind, Path(out), dtype=dtype, force=force)


def open_run(path: str | Path, *, base: str | None = None, force: bool = False) -> Run:
    """Open a run folder, or any PEFT adapter folder, also one that was not made by budwood.

    Args:
        path: RUN, or a folder with adapter_config.json.
        base: the base model, where the folder does not say it or another place holds it.
        force: accept a base whose weights differ from those the adapter was made on.

    Raises:
        AdapterError: there is no adapter; a `DamagedError` where there was one that cannot be read any more.
        BaseMismatchError: the base has other weights.
    """
    path = Path(path)
    peft.register()
    adapter = _adapter_folder(path)
    info, said = _described(path, adapter)
    reference = base or (said.base if said else info.base_id)
    if not reference:
        raise AdapterError(f"{adapter} does not say which base it belongs to", action="name it with --base MODEL")
    revision = said.revision if said else info.revision
    source = locate(_with_revision(reference, revision) if base is None else reference)
    if said:
        _check_base(said, source, force)
    return Run(path, adapter, source, info, said, force)


def verify_run(
    path: str | Path, *, base: str | None = None, force: bool = False, portable: bool = True
) -> VerifyReport:
    """Open a run or an adapter folder and verify it; damage that keeps it from being opened is a failed check, too.

    The arguments and the other errors are those of `open_run` and `Run.verify`.
    """
    try:
        run = open_run(path, base=base, force=force)
    except DamagedError as error:
        return VerifyReport((_verification.failed("it can be opened", error.got, error.action),))
    return run.verify(portable=portable)


def _with_revision(reference: str, revision: str | None) -> str:
    is_hub_id = reference.count("/") == 1 and not Path(reference).exists()
    return f"{reference}@{revision}" if revision and is_hub_id and "@" not in reference else reference


def _adapter_folder(path: Path) -> Path:
    """Return the folder with the adapter, or say why there is none."""
    inner = path / "adapter"
    for folder in (inner, path):
        if _published.is_published(folder):
            return folder
    if (path / RECIPE).is_file() and (state := read_status(path).get("state")):
        if state == "done":
            raise _damaged(path, inner)
        raise AdapterError(
            f"the run {path} is {state} and has no adapter yet",
            wanted="a run that is done",
            action="wait for it" if state == "running" else f"go on with `{RunFolder(path).resume_command}`",
        )
    if (path / facts.FILE).is_file():
        raise _damaged(path, path)
    if not path.exists():
        raise AdapterError(f"{path} does not exist", wanted="a run, or a PEFT adapter folder")
    raise AdapterError(f"{path} holds no adapter", wanted="adapter/ or adapter_config.json in it")


def _damaged(path: Path, adapter: Path) -> DamagedError:
    return DamagedError(
        f"{_published.missing(adapter)} is missing from what was finished", action=repair(path, adapter)
    )


def _described(path: Path, adapter: Path) -> tuple[AdapterInfo, AdapterFacts | None]:
    """Read what a folder says; what cannot be read was whole once."""
    try:
        info, said = _published.describe(adapter), facts.read(adapter)
    except AdapterError as error:
        raise DamagedError(error.got, wanted=error.wanted, action=repair(path, adapter) or error.action) from error
    if said is None and adapter != path and read_status(path):
        raise DamagedError(f"{adapter / facts.FILE} is missing from a finished run", action=repair(path, adapter))
    return info, said


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
