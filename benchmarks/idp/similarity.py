"""How like the uncompressed model's the inner workings of a repaired model are, layer by layer.

For each scored token, the cosine between what the two models have there: what attention adds to the stream (the output
of its last projection), and the state that leaves the layer; means over tokens and texts. What stands in front of a
text, a prompt or a prefix, has no counterpart and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from peft import PeftModel
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from budwood.data.render import Encoded
from budwood.methods.idp.router import decoder_blocks
from budwood.models.sites import find_sites
from budwood.tuning.soft_prompts import Prompted, SoftPrompt, has_soft_prompt

States = dict[str, Float[Tensor, "tokens d"]]


@torch.no_grad()
def layer_similarity(
    reference: nn.Module, models: Mapping[str, nn.Module], texts: Sequence[Encoded]
) -> dict[str, dict[str, list[float]]]:
    """Return for each model the mean cosine to the reference of each layer, of "attention" and of "states".

    Args:
        reference: the uncompressed model, bare.
        models: bare, of PEFT or `Prompted`; a bank chooses from the part of each text that is not scored.
        texts: the part that is scored carries labels.
    """
    names = attention_names(reference)
    ready = {name: SoftPrompt(model) if has_soft_prompt(model) else model for name, model in models.items()}
    sums = {name: torch.zeros(len(names)) for name in ready}
    for text in texts:
        wanted = inner_states(reference, names, text)
        for name, model in ready.items():
            found = inner_states(model, names, text)
            sums[name] += torch.tensor([float(cosine_similarity(found[at], wanted[at]).mean()) for at in names])
    layers = len(names) // 2
    means = {name: (total / len(texts)).tolist() for name, total in sums.items()}
    return {name: {"attention": of[:layers], "states": of[layers:]} for name, of in means.items()}


def attention_names(model: nn.Module) -> list[str]:
    """Return the modules that are looked at: last projections of attention, then layers, in order."""
    blocks = list(decoder_blocks(model))
    places = {id(module): name for name, module in model.named_modules()}
    projections = {site.layer: site.name for site in find_sites(model) if site.role == "o"}
    return [projections[layer] for layer in range(len(blocks))] + [places[id(block)] for block in blocks]


@torch.no_grad()
def inner_states(model: nn.Module, names: Sequence[str], text: Encoded) -> States:
    """Return what the named modules put out for the scored tokens of a text, in fp32."""
    ids = torch.tensor([text.input_ids], device=next(model.parameters()).device)
    scored = [i for i, label in enumerate(text.labels) if label >= 0]
    given = torch.ones_like(ids)
    given[:, scored[0] :] = 0
    options: dict[str, Any] = {"selection": model.select(ids, given)} if isinstance(model, Prompted) else {}
    with _watched(base_of(model), names) as seen:
        model(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    last = ids.shape[1]  # vectors in front of the text, where a model puts them into the row, are not the text's
    return {name: states[0, -last:][scored].float().cpu() for name, states in seen.items()}


def base_of(model: nn.Module) -> nn.Module:
    """Return the model whose layers run."""
    if isinstance(model, Prompted):
        return model.model
    return model.get_base_model() if isinstance(model, PeftModel) else model


@contextmanager
def _watched(base: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Yield what the named modules put out last, while the block lasts."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            seen[name] = output if isinstance(output, Tensor) else output[0]

        return hook

    hooks = [base.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    try:
        yield seen
    finally:
        for one in hooks:
            one.remove()
