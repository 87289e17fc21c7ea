"""Soft prompts on their own: a PEFT folder for each, and their vectors for servers that take embeddings.

A soft prompt is input and no weight, so it cannot be a LoRA. A server reads it as the first rows of a request's
embeddings: the prompt's vectors, then the base's embeddings of the text (vLLM calls that `prompt_embeds`). Which
prompt a request gets is decided before it is sent.

OUT/NAME/                 one prompt, as `PeftModel.from_pretrained` reads it
OUT/prompts.safetensors   NAME -> (n, d), in the base's precision
OUT/README.md             how each is used
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float, Int
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from budwood import storage
from budwood.export.card import CardFacts, CardUse, model_card
from budwood.export.checks import Check, VerifyReport, close, close_in_16_bits
from budwood.export.foreign import CONFIG, WEIGHTS
from budwood.export.result import ExportResult
from budwood.tuning.attach import quiet_peft

VECTORS = "prompts.safetensors"
KEY = "prompt_embeddings"  # PEFT's name of the one tensor of a soft prompt


def export_prompts(  # noqa: PLR0913
    folders: Mapping[str, Path],
    base: PreTrainedModel,
    out: Path,
    *,
    base_id: str,
    revision: str | None,
    card: CardFacts,
    dtype: torch.dtype,
    inputs: Int[Tensor, "b t"],
    replace: bool = False,
) -> ExportResult:
    """Write soft prompts, and check that the base computes the same from their vectors as behind PEFT.

    Args:
        folders: the PEFT folder of each prompt, by name.
        base: in evaluation mode.
        out: the folder to write.
        base_id, revision: what servers call the base.
        card: what the model card states.
        dtype: of the vectors that servers read.
        inputs: token ids, from `probe_inputs`.
        replace: whether `out` may be replaced.

    Raises:
        VerificationError: they do not compute the same; nothing is left at `out`.
    """
    lines = {"PEFT": _peft(base_id, revision, next(iter(folders))), "vLLM": _vllm(base_id, revision, [*folders])}
    notes = (
        "A soft prompt is input, no change of weights: it cannot become a LoRA or a part of a merged model.",
        "Servers do not choose among prompts: choose before the request, or answer with `budwood generate`.",
    )
    with storage.new_folder(out, replace=replace) as made:
        for name, folder in folders.items():
            (made / name).mkdir()
            for file in (CONFIG, WEIGHTS):
                shutil.copyfile(folder / file, made / name / file)
        vectors = {name: load_file(made / name / WEIGHTS)[KEY].to(dtype).contiguous() for name in folders}
        save_file(vectors, made / VECTORS, metadata={"format": "pt"})
        use = CardUse(task_type="CAUSAL_LM", commands=lines, notes=notes, kind="prompts")
        storage.write_text(made / "README.md", model_card(card, use))
        report = _verified(made, base, [*folders], inputs)
        report.require()
    size = (out / VECTORS).stat().st_size
    return ExportResult(out, "prompts", size, None, 0, lines, notes, report.checks)


def prompt_embeddings(
    vectors: Float[Tensor, "n d"], base: PreTrainedModel, ids: Int[Tensor, " t"]
) -> Float[Tensor, "n_t d"]:
    """Return the embeddings of one request: a prompt's vectors, then those of the text's tokens."""
    table = base.get_input_embeddings()
    return torch.cat([vectors.to(table.weight), table(ids.to(table.weight.device))])


@torch.no_grad()
def _verified(made: Path, base: PreTrainedModel, names: list[str], inputs: Int[Tensor, "b t"]) -> VerifyReport:
    """Compare each prompt as a server reads it with PEFT's forward."""
    stored, ids, checks = load_file(made / VECTORS), inputs.to(base.device), []
    plain = base(input_ids=ids).logits
    for name in names:
        embedded = torch.stack([prompt_embeddings(stored[name], base, row) for row in ids])
        found = base(inputs_embeds=embedded).logits[:, -ids.shape[1] :]
        with quiet_peft():
            wanted = PeftModel.from_pretrained(base, str(made / name)).eval()(input_ids=ids).logits
        title, wanted = f"{name}: embeddings give what PEFT gives", wanted[:, -ids.shape[1] :]
        if base.dtype == torch.float32 and stored[name].dtype == torch.float32:
            checks.append(close(title, wanted, found))
        else:
            checks.append(close_in_16_bits(title, wanted, found, found, plain))
    return VerifyReport((Check("PEFT reads every prompt", True), *checks))


def _peft(base_id: str, revision: str | None, name: str) -> str:
    pinned = f", revision={revision!r}" if revision else ""
    return "\n".join(
        [
            "import peft, transformers",
            f"base = transformers.AutoModelForCausalLM.from_pretrained({base_id!r}{pinned})",
            f"model = peft.PeftModel.from_pretrained(base, {f'PATH/OF/THIS/FOLDER/{name}'!r})",
        ]
    )


def _vllm(base_id: str, revision: str | None, names: list[str]) -> str:
    pinned = f", revision={revision!r}" if revision else ""
    return "\n".join(
        [
            "import safetensors.torch, torch, transformers, vllm",
            f"base, prompts = {base_id!r}, safetensors.torch.load_file({f'PATH/OF/THIS/FOLDER/{VECTORS}'!r})",
            f"tokenizer = transformers.AutoTokenizer.from_pretrained(base{pinned})",
            f"table = transformers.AutoModelForCausalLM.from_pretrained(base{pinned}).get_input_embeddings()",
            "ids = tokenizer('TEXT', return_tensors='pt').input_ids[0]",
            f"embeds = torch.cat([prompts[{names[0]!r}].to(table.weight), table(ids)]).detach()",
            f"# or another one: {', '.join(names)}",
            f"vllm.LLM(base{pinned}, enable_prompt_embeds=True).generate({{'prompt_embeds': embeds}})",
        ]
    )
