"""ATTEMPT (Asai et al., 2022, https://arxiv.org/abs/2205.11961): a learned soft mixture of prompts for each input.

With e the mean-free reading of a text, z = LayerNorm(U SiLU(V max_t e_t)), and each source prompt read as max_j P_ij:

    a = softmax_i(max_j P_ij · z / τ)        P = P_target + Σ_i a_i P_i

Learned: P_target, U, V and the LayerNorm; the sources are frozen. The text that is read is the first half of a row, as
for every other system that adjusts to its input. Sources must have one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

WIDTH = 100  # of the bottleneck, as in the authors' code


class Attempt(nn.Module):
    """The base behind a mixture of prompts; trained and scored like any other model.

    Args:
        base: frozen.
        sources: the trained prompts, (n, d) each.
        seed: of the bottleneck and of the target prompt, which starts from vectors of the vocabulary.
    """

    def __init__(self, base: PreTrainedModel, sources: Sequence[Float[Tensor, "n d"]], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        table = base.get_input_embeddings().weight
        n, d = sources[0].shape
        self.base = base
        self.register_buffer("sources", torch.stack(list(sources)).to(table.device), persistent=False)
        drawn = torch.randint(len(table), (n,))
        self.target = nn.Parameter(table[drawn].detach().float().clone())
        self.down, self.up = nn.Linear(d, WIDTH, bias=False), nn.Linear(WIDTH, d, bias=False)
        self.norm = nn.LayerNorm(d)
        self.to(table.device)

    @property
    def config(self) -> Any:
        return self.base.config

    def forward(self, input_ids: Int[Tensor, "b t"], attention_mask: Int[Tensor, "b t"], **options: Any) -> Any:
        """Return the base's output for prompt and text; its logits are those of both."""
        embedded = self.base.get_input_embeddings()(input_ids)
        given = attention_mask.cumsum(1) <= attention_mask.sum(1, keepdim=True) // 2
        read = embedded.float().masked_fill(~(given & attention_mask.bool())[..., None], -torch.inf).amax(dim=1)
        z = self.norm(self.up(nn.functional.silu(self.down(read))))
        shares = (self.sources.amax(dim=1) @ z.T / z.shape[1] ** 0.5).softmax(dim=0)
        prompts = self.target + torch.einsum("mb,mnd->bnd", shares, self.sources)
        mask = nn.functional.pad(attention_mask, (prompts.shape[1], 0), value=1)
        joined = torch.cat([prompts.to(embedded), embedded], dim=1)
        return self.base(inputs_embeds=joined, attention_mask=mask, **options)
