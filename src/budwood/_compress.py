"""The story of a compressed model, in one page: source -> text -> weights -> an ordinary folder, loaded and measured.

A wrong flag is told before torch is loaded, a wrong model or text before weights are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budwood import __version__, storage
from budwood.compression.settings import METHODS, Compression
from budwood.errors import ModelError, NotSupportedError, UsageError, nearest

if TYPE_CHECKING:
    from budwood.compression.calibration import Calibration
    from budwood.compression.layers import LayerReport
    from budwood.models import Base, Source

FILE = "compression.json"
FORMAT = 1
ENGINES = ("budwood", "llm-compressor")

Progress = Callable[[str, int, int], None]


def compress(
    model: str,
    settings: Compression,
    calibration: Sequence[Path] = (),
    *,
    out: str | Path,
    engine: str = "budwood",
    force: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Compress the linear layers of a model and write an ordinary model folder.

    Args:
        model: a model reference.
        settings: what to do; its defaults are filled in here.
        calibration: files or folders of text like that the model will read.
        out: the folder to make: configuration, tokenizer, safetensors, `compression.json` and a model card.
        engine: "budwood", whose folder holds plain weights, or "llm-compressor", whose folder holds packed ones.
        force: replace an earlier compressed model in `out`.
        progress: show a bar on standard error.

    Returns:
        What `compression.json` holds, with "folder" and "bytes". NLL is in nats a token, on text held out of the
        calibration, measured on the model before and on the folder as it was read back.

    Raises:
        BudwoodError: anything that went wrong, with what to do; nothing is left at `out` then.
    """
    from budwood.compression.layers import summary
    from budwood.evals.progress import progress_shown
    from budwood.models import load_base
    from budwood.models.files import weight_files

    job = _Job.of(model, settings, calibration, Path(out), engine, force)
    with storage.new_folder(job.out, replace=force) as staged, progress_shown(progress) as show:
        before, layers = job.write(staged, show)
        written = load_base(str(staged.absolute()), dtype=job.settings.dtype)
        nll = {"before": before, "after": job.nll(written, show)} if job.text else None
        facts = job.facts() | {
            "fingerprint": written.source.fingerprint,
            "nll": nll,
            "layer_error": summary(layers),
            "layers": [layer.to_dict() for layer in layers],
        }
        storage.write_json(staged / FILE, facts)
        storage.write_text(staged / "README.md", _card(facts, written, job.out.name))
    size = sum(file.stat().st_size for file in weight_files(job.out, str(job.out)))
    return {"folder": str(job.out), "bytes": size, **facts}


def forecast(
    model: str,
    settings: Compression,
    calibration: Sequence[Path] = (),
    *,
    out: str | Path,
    engine: str = "budwood",
    force: bool = False,
) -> dict[str, Any]:
    """Return what `compress` would do with the same arguments, and fail where it would. Reads no weights."""
    return {"folder": str(out), **_Job.of(model, settings, calibration, Path(out), engine, force).facts()}


@dataclass(frozen=True)
class _Job:
    """What is to be done, checked as far as it can be without weights."""

    source: Source
    settings: Compression
    text: Calibration | None
    out: Path
    engine: str
    size: dict[str, Any]

    @classmethod
    def of(cls, model: str, settings: Compression, paths: Sequence[Path], out: Path, engine: str, force: bool) -> _Job:
        settled = settings.settled(has_text=bool(paths))
        _refuse_place(out, force)
        if engine not in ENGINES:
            raise UsageError(f"there is no engine {engine!r}", wanted=nearest(engine, ENGINES))
        from budwood.compression import side
        from budwood.models import choose_dtype, locate

        settled = replace(settled, dtype=str(choose_dtype(settled.dtype)).removeprefix("torch."))
        if engine == "llm-compressor":
            side.check(settled)
        source = locate(model)
        if source.folder.resolve() == out.resolve():
            raise UsageError(f"{out} is the model that is to be compressed", action="choose another place")
        size = _sizes(source, settled, bool(paths))
        return cls(source, settled, _text(source, settled, paths) if paths else None, out, engine, size)

    def facts(self) -> dict[str, Any]:
        """Return what is known before any weight is read."""
        return {
            "format": FORMAT,
            "budwood": __version__,
            "engine": self.engine,
            **self.settings.to_dict(),
            "source": {
                "reference": str(self.source.reference),
                "revision": self.source.revision,
                "fingerprint": self.source.fingerprint,
            },
            "calibration": self.text.to_dict() if self.text else None,
            "size": self.size,
        }

    def write(self, folder: Path, show: Progress | None) -> tuple[float | None, list[LayerReport]]:
        """Write the compressed model; return the NLL of the uncompressed one, and what was done to each layer."""
        from budwood.compression import side
        from budwood.compression.sequential import compress_calibrated, compress_plain
        from budwood.models import load_base
        from budwood.models.borders import quiet_transformers

        base = load_base(self.source, dtype=self.settings.dtype)
        before = self.nll(base, show) if self.text else None
        if self.engine == "llm-compressor":
            assert self.text is not None
            ignored = _other_layers(base)
            del base
            side.run(self.settings, self.source.folder, self.text.windows, folder, ignore=ignored)
            return before, []
        if self.text is None:
            layers = compress_plain(base.model, self.settings, show)
        else:
            layers = compress_calibrated(base.model, self.settings, self.text.windows, show)
        with quiet_transformers():
            base.model.save_pretrained(folder)
        if base.tokenizer is not None:
            base.tokenizer.save_pretrained(folder)
        return before, layers

    def nll(self, base: Base, show: Progress | None) -> float:
        """Return the mean over the held-out tokens, in nats.

        Raises:
            ModelError: it is not finite.
        """
        from budwood.evals.likelihood import likelihoods

        assert self.text is not None
        found = likelihoods(base.model, self.text.encoded(), progress=show)
        mean = sum(one.nll for one in found) / sum(one.tokens for one in found)
        if not math.isfinite(mean):
            raise ModelError(
                f"the NLL of {base.source.reference} in {self.settings.dtype} is {mean}",
                wanted="a finite number",
                action="take --dtype float32, more bits or less sparsity",
            )
        return mean


def _other_layers(base: Base) -> list[str]:
    """Return the names of linear layers that are no sites, such as the output head."""
    from torch import nn

    from budwood.models import find_sites

    sites = {site.name for site in find_sites(base.model)}
    return [name for name, module in base.model.named_modules() if isinstance(module, nn.Linear) and name not in sites]


def _refuse_place(out: Path, force: bool) -> None:
    """Refuse a place that is taken, and with `force` one that holds anything but an earlier compressed model."""
    if not out.exists():
        return
    if not force:
        raise UsageError(f"{out} exists already", action="choose another place, or add --force to replace it")
    if not out.is_dir() or (any(out.iterdir()) and not (out / FILE).is_file()):
        raise UsageError(
            f"{out} holds no compressed model",
            wanted=f"a new place, or a folder with {FILE} to replace",
            action="choose another place",
        )


def _sizes(source: Source, settings: Compression, has_text: bool) -> dict[str, Any]:
    """Return how many weights are compressed and what the model takes in theory; refuse what cannot be compressed."""
    from budwood.export.merged import task_type
    from budwood.models import empty_model, find_sites
    from budwood.models.quantisation import is_quantised

    if is_quantised(source):
        raise NotSupportedError(
            f"{source.reference} is quantised already", wanted="plain weights", action="name the unquantised model"
        )
    model = empty_model(source)
    if has_text and task_type(model) != "CAUSAL_LM":
        raise NotSupportedError(
            f"{type(model).__name__} is no decoder that generates text",
            wanted="a causal language model to calibrate",
            action="leave --calibration out, with --method rtn or magnitude",
        )
    sites = find_sites(model)
    if not sites:
        raise ModelError(f"{source.reference} has no linear layers in its blocks", wanted="a Transformer")
    settings.check_widths(site.in_features for site in sites)
    weights = sum(parameter.numel() for parameter in model.parameters())
    compressed = sum(site.in_features * site.out_features for site in sites)
    return {"layers": len(sites), **settings.size(weights, compressed)}


def _text(source: Source, settings: Compression, paths: Sequence[Path]) -> Calibration:
    from budwood.compression.calibration import read_calibration
    from budwood.models import load_config, load_tokenizer

    positions = load_config(source).get_text_config().to_dict().get("max_position_embeddings")
    return read_calibration(paths, load_tokenizer(source), settings, longest=positions)


def _card(facts: dict[str, Any], written: Base, name: str) -> str:
    from budwood.export.card import CardFacts, CardUse, model_card
    from budwood.export.merged import task_type, use_lines

    size = facts["size"]
    packed = facts["engine"] != "budwood" and facts["bits"] is not None
    notes = (
        "The folder holds packed weights of compressed-tensors."
        if packed
        else f"The weights lie in the folder as plain {facts['dtype']} numbers, so the file is no smaller.",
        f"Stored in a format of its own the model would take about {size['mib_in_theory']:,.0f} MiB, in 16 bits"
        f" {size['mib_in_16_bits']:,.0f} MiB.",
    )
    nll = facts["nll"] or {}
    tokens = f"{facts['calibration']['held_out_tokens']:,} tokens held out of the calibration" if nll else ""
    metrics = {f"NLL {when}, nats a token, {tokens}": value for when, value in nll.items()}
    chosen = {name: facts[name] for name in Compression.__dataclass_fields__ if facts[name] not in ("", None)}
    card = CardFacts(
        method=facts["method"],
        base=facts["source"]["reference"],
        paper=METHODS[facts["method"]].paper,
        revision=facts["source"]["revision"] or "",
        fingerprint=facts["source"]["fingerprint"],
        recipe=chosen,
        metrics=metrics,
        budwood_version=__version__,
    )
    use = CardUse(task_type(written.model), use_lines(written.model, name), notes, kind="compressed")
    return model_card(card, use)
