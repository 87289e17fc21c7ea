"""What was published, whatever its form: a PEFT adapter, or what its method publishes in its stead.

`open_run`, loading and verification go through here, so that nothing above has to know the forms there are.
"""

from __future__ import annotations

from pathlib import Path

from jaxtyping import Int
from peft import PeftModel, PeftType, PromptLearningConfig
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from torch import Tensor, nn

from budwood import facts
from budwood.errors import AdapterError, NotSupportedError
from budwood.export.answers import verify_answers
from budwood.export.checks import VerifyReport
from budwood.export.foreign import CONFIG, AdapterInfo, inspect_adapter, load_foreign
from budwood.export.verify import NativeBase, verify_native
from budwood.models import Base
from budwood.tuning.registry import method_of, methods

_FORMS = {"lora": "a LoRA", "gguf": "a LoRA for llama.cpp", "merged": "a part of the base's weights"}


def is_published(folder: Path) -> bool:
    """Whether `folder` holds an adapter, of whatever form."""
    return (folder / CONFIG).is_file() or method_of(folder) is not None


def describe(folder: Path) -> AdapterInfo:
    """Read a folder as data.

    Raises:
        AdapterError: it cannot be read.
    """
    method = method_of(folder)
    if method is None or method.load_format is None:
        return inspect_adapter(folder)
    size = sum(file.stat().st_size for file in facts.weight_files(folder))
    base_id = method.load_format().base_id(folder)
    return AdapterInfo(folder, method.name.upper(), base_id, None, {}, {}, size, ())


def missing(folder: Path) -> Path:
    """Return the file for want of which a folder is no adapter any more, or the folder itself where that is gone."""
    if not folder.is_dir():
        return folder
    try:
        said = facts.read(folder)
    except AdapterError:
        said = None
    method = methods().get(said.method) if said else None
    return folder / (method.mark if method and method.mark else CONFIG)


def load(base: Base, folder: Path, *, force: bool = False) -> nn.Module:
    """Return what was published, on its base and in evaluation mode.

    Args:
        force: accept a base with other weights.
    """
    method = method_of(folder)
    if method is None or method.load_format is None:
        return load_foreign(base.model, folder).eval()
    return method.load_format().load(base, folder, force=force)


def verify(model: nn.Module, folder: Path, base: NativeBase, inputs: Int[Tensor, "b t"]) -> VerifyReport:
    """Load the saved `folder` in a fresh process and compare with `model`, bit by bit."""
    method = method_of(folder)
    if method is None or method.load_format is None:
        assert isinstance(model, PeftModel)
        return verify_native(model, folder, base, inputs)
    device = next(model.parameters()).device
    answers = method.load_format().answers(model, inputs.to(device))
    return verify_answers(answers, method.name, folder, base, inputs, device=device)


def prompt_folders(folder: Path) -> dict[str, Path]:
    """Return the PEFT folder of each soft prompt in a published folder, by name.

    Raises:
        NotSupportedError: what is there is no soft prompt.
    """
    found = [file.parent for file in facts.weight_files(folder)]
    for one in found:
        kind = inspect_adapter(one).peft_type
        if kind != "PROMPT_TUNING":
            learns_input = issubclass(PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(kind)], PromptLearningConfig)
            raise NotSupportedError(
                f"an adapter of kind {kind.lower()} holds no soft prompt",
                wanted="prompt tuning, or a bank of soft prompts",
                action="" if learns_input else "use `budwood export --to lora`; it changes weights",
            )
    return {one.name if one != folder else "prompt": one for one in found}


def require_change_of_weights(folder: Path, kind: str) -> None:
    """Refuse an export that only a change of weights can become.

    Raises:
        NotSupportedError: a bank of soft prompts, or a single one.
    """
    method = method_of(folder)
    what = method.name if method else "prompt" if inspect_adapter(folder).peft_type == "PROMPT_TUNING" else None
    if what is not None:
        raise NotSupportedError(
            f"what {what} makes cannot become {_FORMS.get(kind, kind)}: it is read before each input and"
            " changes no weight",
            wanted="an adapter that changes weights, such as gift or lora",
            action="use `budwood export --to prompts`, or run it with budwood",
        )
