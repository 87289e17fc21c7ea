"""`budwood compress`: a model with fewer bits or fewer weights, as an ordinary model folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from budwood._texts import shown
from budwood.cli._render import Table, next_commands
from budwood.cli._shell import Answer, Quiet
from budwood.compression.settings import METHODS

FEW_TOKENS = 4000  # below, a figure per token is shaky in its second digit


def compress(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="smollm2, org/name, a folder, or *.gguf.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The model folder to write.")],
    bits: Annotated[int | None, typer.Option(metavar="B", help="Bits of a weight: 4, 3 or 2; up to 8.")] = None,
    group: Annotated[
        int | None, typer.Option(metavar="N", help="Inputs that share a grid, with --bits; default 64.")
    ] = None,
    symmetric: Annotated[bool, typer.Option("--symmetric", help="Grids around zero, without a zero point.")] = False,
    sparsity: Annotated[
        float | None, typer.Option(metavar="X", help="Share of the weights to set to 0, for example 0.5.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="KEPT:OF", help="Keep 2:4 of neighbouring weights, in place of a share.")
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="M", help="rtn, gptq; magnitude, wanda, sparsegpt. Default: the best possible.")
    ] = "",
    calibration: Annotated[
        list[Path] | None,
        typer.Option(
            "--calibration", metavar="FILE|DIR", help="Text to calibrate and measure on (rtn: to measure). Repeatable."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", help="Windows of text to calibrate on, at most.")] = 64,
    length: Annotated[int, typer.Option(metavar="N", help="Tokens of a window.")] = 256,
    act_order: Annotated[
        bool | None,
        typer.Option("--act-order/--no-act-order", help="GPTQ: settle the largest inputs first; default yes."),
    ] = None,
    damping: Annotated[float, typer.Option(metavar="X", help="Of GPTQ and SparseGPT.")] = 0.01,
    dtype: Annotated[
        str, typer.Option(metavar="float32|bfloat16|float16", help="Precision of the written weights.")
    ] = "float32",
    engine: Annotated[
        str, typer.Option(metavar="budwood|llm-compressor", help="Who compresses; the latter writes packed weights.")
    ] = "budwood",
    seed: Annotated[int, typer.Option(metavar="N", help="Which windows of the text.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier compressed model in DIR.")] = False,
    quiet: Quiet = False,
) -> Answer:
    """Quantise or prune a model; measure what that costs.

    \b
    Example:
      budwood compress smollm2 --bits 4 --calibration notes.md -o models/small
    """
    from budwood import _compress
    from budwood.compression.settings import Compression, Pattern

    settings = Compression(
        method=method,
        bits=bits,
        group=group,
        symmetric=symmetric,
        sparsity=sparsity,
        pattern=Pattern.parse(pattern) if pattern is not None else None,
        act_order=act_order,
        damping=damping,
        dtype=dtype,
        samples=samples,
        length=length,
        seed=seed,
    )
    texts = calibration or []
    if dry_run:
        found = _compress.forecast(model, settings, texts, out=out, engine=engine, force=force)
        rows = [*_expected(found), ("folder", f"{out}, not written: this is a dry run")]
        return Answer(found, [_head(found), Table(("", ""), rows)], brief=_head(found).strip())
    found = _compress.compress(model, settings, texts, out=out, engine=engine, force=force, progress=not quiet)
    rows = [*_expected(found), *_measured(found)]
    after = next_commands(["budwood", "adapt", found["folder"], "--examples", "FILE"])
    return Answer(found, [_head(found), Table(("", ""), rows), after], brief=found["folder"])


def _head(found: dict[str, Any]) -> str:
    if found["bits"] is not None:
        what = f"{found['bits']} bits, {'symmetric ' if found['symmetric'] else ''}groups of {found['group']}"
    else:
        what = f"{found['sparsity']:.0%} zeros" + (f", {found['pattern']}" if found["pattern"] else "")
    return f"{found['folder']}: {found['source']['reference']} with {found['method']}, {what}\n"


def _expected(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    size, text = found["size"], found["calibration"]
    yield "compressed weights", f"{size['compressed_weights']:,} of {size['weights']:,}, in {size['layers']} layers"
    yield "bits a weight", f"{shown(size['bits_per_weight'])} there, {shown(size['bits_per_weight_of_model'])} in all"
    yield "size in theory", f"{size['mib_in_theory']:,.0f} MiB; in 16 bits {size['mib_in_16_bits']:,.0f} MiB"
    if text:
        windows = f"{text['windows']} windows of {text['length']} tokens; {text['held_out']} held out"
        if METHODS[found["method"]].needs_text:
            yield "calibrated on", windows
        else:
            yield "text", f"{windows}; only to measure: {found['method']} does not look at it"


def _measured(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    packed = found["engine"] == "llm-compressor" and found["bits"] is not None
    plain = "packed weights" if packed else f"plain {found['dtype']} weights"
    yield "written", f"{found['bytes'] / 2**20:,.0f} MiB of {plain}"
    error, nll = found["layer_error"], found["nll"]
    if error:
        of = "outputs" if found["calibration"] else "weights"
        yield f"relative error of {of}", f"{shown(error['mean'])} in the mean of the layers"
        yield "  the largest", f"{shown(error['largest'])}, {error['largest_at']}"
    if nll:
        tokens = found["calibration"]["held_out_tokens"]
        few = ": a small sample" if tokens < FEW_TOKENS else ""
        figures = f"{shown(nll['before'])} before, {shown(nll['after'])} after"
        yield "NLL held out", f"{figures}; nats a token, over {tokens:,} tokens{few}"
