"""A published bank: how its folder is written and read, and what two loads of it must agree on bit by bit."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Int
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from budwood.errors import AdapterError
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.files import PROMPTS, WEIGHTS, read_facts
from budwood.methods.idp.runtime import Prompt
from budwood.models import Base
from budwood.tuning.attach import quiet_peft


class BankFormat:
    """`selector.json`, and an ordinary PEFT folder for each prompt."""

    def save(self, model: nn.Module, folder: Path, base: Base) -> None:
        """Write the bank."""
        assert isinstance(model, PromptBank)
        model.save(folder, replace=True)

    def load(self, base: Base, folder: Path, *, force: bool) -> nn.Module:
        """Read a bank; a prompt that is missing, damaged or of another base is named."""
        return PromptBank.load(base.model, folder, fingerprint=base.source.fingerprint, force=force).eval()

    def weights(self, folder: Path) -> list[Path]:
        """Return the weights of each prompt, in the bank's order."""
        names = read_facts(folder).prompts
        files = [folder / PROMPTS / name / WEIGHTS for name in names]
        for name, file in zip(names, files, strict=True):
            if not file.is_file():
                raise AdapterError(f"the prompt {name!r} is missing {file}", action="restore it")
        return files

    def base_id(self, folder: Path) -> str:
        """Return the base that `selector.json` names."""
        return read_facts(folder).base

    def answers(self, model: nn.Module, ids: Int[Tensor, "b t"], folder: Path | None = None) -> dict[str, Tensor]:
        """Return the logits of the base, of each prompt through PEFT's forward, and of the bank; and its scores."""
        assert isinstance(model, PromptBank)
        base = model.model
        with torch.no_grad():
            found = {"base": base(input_ids=ids).logits}
            for prompt in model.prompts:
                alone = as_peft(base, prompt) if folder is None else _read(base, folder / PROMPTS / prompt.name)
                found[f"prompt {prompt.name}"] = alone(input_ids=ids).logits[:, -ids.shape[1] :]
            found["bank"] = model(ids, selection=[row % len(model) for row in range(len(ids))]).logits
            if len(model) > 1:
                found["scores"] = model.scores(ids)
        return {name: tensor.cpu().contiguous() for name, tensor in found.items()}


def as_peft(base: PreTrainedModel, prompt: Prompt) -> PeftModel:
    """Return the base behind one prompt as PEFT runs it."""
    with quiet_peft():
        model = get_peft_model(base, prompt.config)
    with torch.no_grad():
        model.prompt_encoder["default"].embedding.weight.copy_(prompt.vectors)
    return model.eval()


def _read(base: PreTrainedModel, folder: Path) -> PeftModel:
    with quiet_peft():
        return PeftModel.from_pretrained(base, str(folder)).eval()
