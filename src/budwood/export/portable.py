"""A trained adapter as a LoRA folder that PEFT, vLLM, SGLang, LoRAX and llama.cpp read alike.

The consumers disagree on scales and ranks: some take one scale and one rank from the configuration for all modules,
some ignore rsLoRA. So the folder leaves nothing to disagree about: the scale is folded into B, every module is padded
with zeros to one rank r, `lora_alpha == r`, and nothing but lora_A and lora_B of linear layers is in the file.
The padding and the folding are exact: ΔW of every module is what the trained adapter has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, TaskType
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from budwood.export.card import CardFacts, CardUse, model_card
from budwood.export.checks import VerifyReport
from budwood.export.foreign import CONFIG, PREFIX, WEIGHTS
from budwood.export.pairs import changes_nothing, name_of_head, padded_pairs, refuse_tied_head
from budwood.export.result import ExportResult
from budwood.export.serving import Served, served_rank
from budwood.export.targets import Targets, describe
from budwood.storage import new_folder, write_json, write_text
from budwood.tuning.factors import LoraFactors, lora_factors


def export_lora(  # noqa: PLR0913
    model: PeftModel,
    out: Path,
    *,
    base_id: str,
    revision: str | None,
    card: CardFacts,
    adapter: str = "default",
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: torch.dtype = torch.float32,
    replace: bool = False,
    inspect: Callable[[Path], VerifyReport] | None = None,
) -> ExportResult:
    """Write the adapter of `model` as a portable LoRA folder; whole, or not at all.

    Args:
        model: the trained model; it is not changed.
        out: the folder to make.
        base_id: what `from_pretrained` takes for the base: a hub id or a folder.
        revision: commit of the base on the hub, or None.
        card: what the model card states.
        adapter: which adapter of `model`.
        tokenizer: its files and chat template are put beside the weights.
        dtype: of the tensors. fp32 keeps the export within rounding of the trained adapter.
        replace: whether a folder that is there already may be replaced.
        inspect: called with the written folder before it appears at `out`; if it raises, nothing appears, else its
            checks are part of the result.

    Raises:
        NotSupportedError: the adapter is no LoRA, or one that a consumer would misread; the message says why.
        AdapterError: a factor is not finite, or does not fit into `dtype`.
        StorageError: `out` exists, or the disk fails.
    """
    factors = lora_factors(model, adapter)
    base = model.get_base_model()
    refuse_tied_head(base)
    rank = served_rank(max(pair.A.shape[0] for pair in factors.values()))
    pairs = padded_pairs(factors, rank, dtype)
    task, base_config = _task_type(model, adapter), _config_of(base)
    served = Served(Path(out).absolute(), base_id, revision, rank, task, base_config)
    notes = _notes(base, factors, rank, served)
    targets = describe(factors, _module_names(base))
    config = _peft_config(served, targets, _stores_transposed(base, factors))
    with new_folder(out, replace=replace) as folder:
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
            (folder / "added_tokens.json").unlink(missing_ok=True)  # SGLang reads it as new words of the vocabulary
        save_file(_tensors(pairs), folder / WEIGHTS, metadata={"format": "pt"})
        write_json(folder / CONFIG, config)
        write_text(
            folder / "README.md", model_card(card, CardUse(task or "", served.commands(served.folder.name), notes))
        )
        checks = inspect(folder).checks if inspect else ()
    size = (served.folder / WEIGHTS).stat().st_size
    lines = served.commands(str(served.folder))
    return ExportResult(served.folder, "lora", size, rank, len(factors), lines, notes, checks)


def _wrapped(base: nn.Module, name: str) -> nn.Module:
    """Return the layer of the base that the adapter wraps."""
    layer = base.get_submodule(name)
    assert isinstance(layer, BaseTunerLayer), name
    return layer.get_base_layer()


def _tensors(pairs: Mapping[str, LoraFactors]) -> dict[str, Tensor]:
    """Return the content of the file: two tensors a module, under PEFT's keys."""
    return {
        f"{PREFIX}{name}.{letter}.weight": tensor
        for name, pair in pairs.items()
        for letter, tensor in (("lora_A", pair.A), ("lora_B", pair.B))
    }


def _task_type(model: PeftModel, adapter: str) -> str | None:
    """Return PEFT's task type; where the user gave none, it is read off the base."""
    given = model.peft_config[adapter].task_type
    if given:
        return TaskType(given).value
    base = model.get_base_model()
    if not (isinstance(base, PreTrainedModel) and base.can_generate()):
        return None
    return "SEQ_2_SEQ_LM" if base.config.is_encoder_decoder else "CAUSAL_LM"


def _config_of(base: nn.Module) -> PreTrainedConfig | None:
    return base.config if isinstance(base, PreTrainedModel) else None


def _module_names(base: nn.Module) -> list[str]:
    """Return the module names that the base has without any adapter."""
    names: list[str] = []
    inside: tuple[str, ...] = ()
    for name, module in base.named_modules():
        if name and not name.startswith(inside):
            names.append(name)
            if isinstance(module, BaseTunerLayer):
                inside = (*inside, f"{name}.")
    return names


def _stores_transposed(base: nn.Module, factors: Mapping[str, LoraFactors]) -> bool:
    """Whether the adapted layers store (in, out), as GPT-2's Conv1D does. PEFT corrects a mix layer by layer."""
    return all(isinstance(_wrapped(base, name), Conv1D) for name in factors)


def _peft_config(served: Served, targets: Targets, fan_in_fan_out: bool) -> dict[str, Any]:
    """Return the configuration with the keys that PEFT has had since 2023: older versions refuse what they lack."""
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": served.task_type,
        "base_model_name_or_path": served.base_id,
        "revision": served.revision,
        "inference_mode": True,
        "r": served.rank,
        "lora_alpha": served.rank,
        "lora_dropout": 0.0,
        "target_modules": targets.modules,
        "fan_in_fan_out": fan_in_fan_out,
        "bias": "none",
        "modules_to_save": None,
    }
    if targets.layers is not None:
        config["layers_to_transform"] = targets.layers
    return config


def _notes(base: nn.Module, factors: Mapping[str, LoraFactors], rank: int, served: Served) -> tuple[str, ...]:
    notes = []
    smallest = min(pair.A.shape[0] for pair in factors.values())
    if smallest < rank:
        notes.append(
            f"Modules are padded with zeros to rank {rank} (smallest trained: {smallest}); no result changes."
        )
    if changes_nothing(factors):
        notes.append("Every ΔW is zero: this adapter changes nothing.")
    if isinstance(base, PreTrainedModel) and name_of_head(base) in factors:
        notes.append("The output layer is adapted, which not every server reads.")
    if gap := served.vllm_gap():
        notes.append(gap + ".")
    return tuple(notes)
