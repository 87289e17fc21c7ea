"""A trained adapter merged into its base: an ordinary model folder that needs neither PEFT nor budwood.

The sum W + ΔW is made in fp32 and rounded once, to the precision of the folder. What that rounding costs is measured:
a fresh process loads the folder with plain transformers, and its logits are compared with the adapter model's. A
quantised base is dequantised before (`dequantised.py`), and the folder holds it so.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float, Int
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from budwood.errors import NotSupportedError, UsageError
from budwood.export.card import CardFacts, CardUse, model_card
from budwood.export.checks import MEAN_KL_FLOOR, Check, VerifyReport, differs, listed, max_difference, mean_kl
from budwood.export.dequantised import OnQuantised, gap_checks, gap_notes
from budwood.export.pairs import name_of_head
from budwood.export.result import ExportResult
from budwood.export.serving import AUTO_CLASSES
from budwood.export.verify import TIMEOUT_S, ask
from budwood.models.files import weight_files
from budwood.models.quantisation import is_quantised
from budwood.models.source import Source
from budwood.storage import new_folder, read_json, write_text

PROBE = Path(__file__).with_name("merged_probe.py")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# fp32: largest difference of a logit, relative to the largest logit where that exceeds 1. Merging changes the order of
# the sums, as an export to LoRA does, and rounds W + ΔW once more. Measured on SmolLM2-135M with GIFT: 2e-6.
FP32_LIMIT = 3e-5
# 16 bits: how much of the adapter's effect (mean KL from the base, per token) the rounding of the weights may cost.
# Measured there in bf16: 0.001.
SHARE = 0.05


def export_merged(
    model: PeftModel,
    source: Source,
    out: Path,
    *,
    card: CardFacts,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: torch.dtype | None = None,
    replace: bool = False,
    inspect: Callable[[Path], VerifyReport] | None = None,
) -> ExportResult:
    """Merge the active adapter of `model` into its base and write the folder; whole, or not at all.

    Args:
        model: the trained model, its base in fp32 and of plain layers. It is used up: it becomes the merged base.
        source: where the base came from.
        out: the folder to make.
        card: what the model card states.
        tokenizer: its files and chat template are put beside the weights.
        dtype: of the written weights; None is the precision of the source.
        replace: whether a folder that is there already may be replaced.
        inspect: called with the written folder before it appears at `out`; if it raises, nothing appears, else its
            checks are part of the result.

    Raises:
        NotSupportedError: the adapter or the base cannot be merged; the message says why.
        StorageError: `out` exists, or the disk fails.
    """
    _refuse_unmergeable(model)
    adapted = sum(isinstance(module, BaseTunerLayer) for module in model.get_base_model().modules())
    dtype = dtype or dtype_of(source)
    if dtype not in DTYPES:
        raise UsageError(f"no merged model in {dtype}", wanted=", ".join(map(str, DTYPES)))
    merged = _merge(model)
    _refuse_not_finite(merged, dtype)
    merged.to(dtype)
    path = Path(out).absolute()
    with new_folder(path, replace=replace) as folder:
        merged.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        checks = inspect(folder).checks if inspect else ()
        notes = _notes(source, dtype, checks)
        use = CardUse(task_type(merged), use_lines(merged, path.name), notes, kind="merged")
        write_text(folder / "README.md", model_card(card, use))
    size = sum(file.stat().st_size for file in weight_files(path, str(path)))
    return ExportResult(path, "merged", size, None, adapted, use_lines(merged, str(path)), notes, checks)


def _refuse_unmergeable(model: PeftModel) -> None:
    """Refuse what cannot be merged, before anything is changed."""
    base = model.get_base_model()
    if any(config.is_prompt_learning for config in model.peft_config.values()):
        raise NotSupportedError(
            "a soft prompt is input, not a change of weights",
            wanted="an adapter that changes weights",
            action="keep it as a PEFT folder; PEFT is what reads it",
        )
    if any(parameter.dtype != torch.float32 for parameter in base.parameters()):
        raise UsageError("the base is not in fp32", wanted="weights to sum in fp32", action="load it in float32")
    _refuse_tied(base)


def _refuse_tied(base: PreTrainedModel) -> None:
    """Refuse a change of one of two tied layers: after the merge both would have it, or they would not be tied."""
    head, embedding = base.get_output_embeddings(), base.get_input_embeddings()
    if head is None or _plain(head).weight is not _plain(embedding).weight:
        return
    for name, module in ((name_of_head(base), head), ("the embedding", embedding)):
        if module is not _plain(module):
            raise NotSupportedError(
                f"{name} is adapted, and embedding and output layer share one weight",
                wanted="an adapter that leaves tied layers alone",
                action="keep it as a PEFT folder; PEFT is what reads it",
            )


def _plain(module: nn.Module) -> nn.Module:
    """Return the layer of the base inside what PEFT may have put around it."""
    if isinstance(module, BaseTunerLayer):
        return module.get_base_layer()
    return module.original_module if isinstance(module, AuxiliaryTrainingWrapper) else module


def dtype_of(source: Source) -> torch.dtype:
    """Return the precision that the source's configuration states; fp32 where it states none of `DTYPES`."""
    config = read_json(source.folder / "config.json")
    stated = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    return next((dtype for dtype in DTYPES if str(dtype) == f"torch.{stated}"), torch.float32)


def _merge(model: PeftModel) -> PreTrainedModel:
    kind = model.peft_config[model.active_adapter].peft_type.value
    try:
        return model.merge_and_unload()
    except (AttributeError, NotImplementedError, ValueError) as error:
        raise NotSupportedError(f"PEFT cannot merge a {kind} adapter: {error}", action="export to lora") from error


def _refuse_not_finite(model: PreTrainedModel, dtype: torch.dtype) -> None:
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter.to(dtype)).all():
            finite = bool(torch.isfinite(parameter).all())
            raise NotSupportedError(
                f"{name}: a merged weight {f'is too large for {dtype}' if finite else 'is NaN or infinite'}",
                wanted="finite numbers",
                action="take bfloat16 or float32" if finite else "train again with a lower learning rate",
            )


def task_type(model: PreTrainedModel) -> str:
    """Return PEFT's word for what a model without adapters generates; nothing for one that generates no text."""
    if not model.can_generate():
        return ""
    return "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"


def use_lines(model: PreTrainedModel, path: str) -> dict[str, str]:
    """Return the lines that make each consumer read a model folder: transformers in Python, vLLM in a shell."""
    auto = AUTO_CLASSES.get(task_type(model), "AutoModel")
    lines = {"transformers": f"import transformers\nmodel = transformers.{auto}.from_pretrained({path!r})"}
    if task_type(model) == "CAUSAL_LM":
        lines["vLLM"] = shlex.join(["vllm", "serve", path])
    return lines


def _notes(source: Source, dtype: torch.dtype, checks: tuple[Check, ...]) -> tuple[str, ...]:
    notes = gap_notes(source, checks) if is_quantised(source) else ()
    if source.reference.kind in ("packaged", "gguf"):
        text = f"The base came from a GGUF file and was dequantised; the folder holds it in {dtype}, not quantised."
        notes = (text, *notes)
    return notes


def verify_merged(
    folder: Path,
    adapted: Float[Tensor, "b t v"],
    base: Float[Tensor, "b t v"],
    inputs: Int[Tensor, "b t"],
    *,
    trained: OnQuantised | None = None,
    accept: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> VerifyReport:
    """Load a merged folder in a fresh process with plain transformers and compare it with the adapter model.

    The weights are computed with in fp32, so that what is measured is what merging and rounding did to them.

    Args:
        folder: the merged model.
        adapted: logits of the trained model, in fp32; on plain layers if the base is quantised.
        base: logits of the base, in fp32; likewise.
        inputs: token ids, from `probe_inputs`.
        trained: logits on the quantised base, to measure the gap to it; None where the base is not quantised.
        accept: whether a gap to the quantised base above its limit is taken all the same.
        timeout_s: how long the fresh process may take.
    """
    answer = ask([sys.executable, "-P", str(PROBE)], {"model": str(Path(folder).absolute())}, inputs, timeout_s)
    if isinstance(answer, Check):
        return VerifyReport((answer,))
    merged = answer.adapted
    foreign = [name for name in answer.result["imported"] if name in ("budwood", "peft")]
    return VerifyReport(
        (
            Check("a fresh process loads it", True),
            listed("neither budwood nor PEFT is imported there", foreign),
            listed("no weight is missing from the files", answer.result["missing"]),
            listed("no tensor of the files is left over", answer.result["unexpected"]),
            *_gap(adapted.cpu(), base.cpu(), merged, answer.result["dtype"]),
            differs("logits differ from the base's", base.cpu(), merged),
            *(gap_checks(merged, trained, accept=accept) if trained else ()),
        )
    )


def _gap(adapted: Tensor, base: Tensor, merged: Tensor, dtype: str) -> tuple[Check, ...]:
    """Return the two measures of the gap; in fp32 the largest logit is judged, in 16 bits the mean KL."""
    if adapted.shape != merged.shape:
        return (Check("logits agree", False, f"{tuple(merged.shape)} instead of {tuple(adapted.shape)}"),)
    difference, kl, effect = max_difference(adapted, merged), mean_kl(adapted, merged), mean_kl(adapted, base)
    exact = dtype == "float32"
    logit_limit = FP32_LIMIT * max(1.0, adapted.abs().max().item()) if exact else None
    kl_limit = MEAN_KL_FLOOR if exact else max(MEAN_KL_FLOOR, SHARE * effect)
    note = f"{effect:.3g} from the base; the folder is in {dtype}"
    if not exact and effect <= kl_limit:
        note += ", which cannot tell this adapter from none: merge in float32"
    return (
        Check("logits of the merged model", logit_limit is None or difference <= logit_limit, difference, logit_limit),
        Check("mean KL per token from the adapter model", kl <= kl_limit, kl, kl_limit, note),
    )
