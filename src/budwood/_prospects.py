"""Which exports an adapter will have, told before it exists: from its tuner's promises and the base's architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel

from budwood.errors import NotSupportedError
from budwood.export.gguf_names import GgufNames
from budwood.export.serving import Served, served_rank
from budwood.models import Source
from budwood.models.quantisation import is_quantised
from budwood.recipe import Recipe
from budwood.tuning.protocol import Promise, Tuner
from budwood.tuning.registry import find_tuner


def prospects(source: Source, base: PreTrainedModel, recipe: Recipe, adapted: PeftModel) -> list[dict[str, Any]]:
    """Return one record an export: "export", "possible", and "reason" where it is not (or a remark where it is).

    Args:
        source: where the base lies.
        base: the base, wrapped or not; on the meta device.
        recipe: decides the tuner.
        adapted: the base with the adapter.
    """
    tuner, config = find_tuner(recipe.tuner_name), adapted.peft_config["default"]
    checks: dict[str, Callable[[], str]] = {
        "lora": lambda: _lora(tuner, config.to_dict()),
        "vllm": lambda: _lora(tuner, config.to_dict()) and _vllm(source, base),
        "gguf": lambda: _lora(tuner, config.to_dict()) and _gguf(base, adapted),
        "merged": lambda: _merged(tuner, source, config.is_prompt_learning),
        "prompts": lambda: _prompts(config.is_prompt_learning),
    }
    return [{"export": name, **_answer(check)} for name, check in checks.items()]


def _answer(check: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"possible": True, "reason": check()}
    except NotSupportedError as error:
        return {"possible": False, "reason": error.got}


def _lora(tuner: Tuner, config: dict[str, Any]) -> str:
    if Promise.LORA not in tuner.keeps:
        raise NotSupportedError(tuner.refuses[Promise.LORA])
    served_rank(max([int(config.get("r") or 1), *(config.get("group_ranks") or {}).values()]))
    return "a plain PEFT LoRA, exact"


def _vllm(source: Source, base: PreTrainedModel) -> str:
    served = Served(Path("LORA"), str(source.reference), source.revision, 8, None, base.config)
    if gap := served.vllm_gap():
        raise NotSupportedError(gap)
    as_folder = source.reference.kind in ("packaged", "gguf")
    return "serves the lora export" + (", with the base as a folder of transformers" if as_folder else "")


def _gguf(base: PreTrainedModel, adapted: PeftModel) -> str:
    names = GgufNames(base)
    for name in adapted.base_model.targeted_module_names:
        names.tensor(f"{name}.weight")
    return "a LoRA for llama.cpp, on any GGUF of the base"


def _merged(tuner: Tuner, source: Source, is_prompt: bool) -> str:
    if is_prompt:
        raise NotSupportedError("a soft prompt is input, not a change of weights")
    if tuner.load_classes and Promise.MERGE not in tuner.keeps:
        raise NotSupportedError(tuner.refuses[Promise.MERGE])
    return "an ordinary model folder" + (", the base in it dequantised" if is_quantised(source) else "")


def _prompts(is_prompt: bool) -> str:
    if not is_prompt:
        raise NotSupportedError("this tuner changes weights and makes no soft prompt")
    return "soft prompts, for runtimes that take embeddings"
