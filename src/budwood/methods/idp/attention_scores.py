"""How much a text attends to each prompt of a bank, layer by layer, without an attention matrix.

For text position t and prompt i with n_i keys, of which the first k are skipped (arXiv 2310.00867, which names neither
layers nor positions; k = 0 there):

    a_{t,j}  = softmax over the keys j of all prompts and of the text up to t
    u_i      = mean over t and heads of Σ_{j in P_i, j ≥ k} a_{t,j} / (n_i − k)       "mean"
    u_i      = mean over t and heads of Σ_{j in P_i, j ≥ k} a_{t,j}                   "mass"

The sum over j is attention with other values: a matrix that says which key belongs to which prompt, (keys, m), in
place of V. No prompt attends to another, since their keys and values come from the cache.

At layer 0 the text has not met any prompt yet, so its score costs one layer and is that of the pass that follows. In
deeper layers the text has attended to all prompts at once: that is a pass of its own. Where prompts cannot stand side
by side, `attention_rows` reads them one by one.

Prompts are aligned at the position n_max where the text begins. With rotary positions each sees the text as in
training. With learned positions (OPT, GPT-2) the text stands at n_max + t, which only the longest were trained with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from budwood.methods.idp.runtime import Runtime
from budwood.methods.idp.support import require_skip, require_softmax
from budwood.tuning.prompt_cache import as_argument, new_cache

NAME = "budwood_scores"


class _Enough(Exception):
    """The last layer that was asked for has been scored; the rest of the pass is not needed."""


@dataclass
class _Recorder:
    """What one pass collects.

    Attributes:
        layers: the layers to score.
        membership: what each key counts for each prompt, (keys, m), fp32.
        weights: what each text position counts, (b, t), each row's sum 1.
        found: layer -> scores, (b, h, m).
    """

    layers: Sequence[int]
    membership: Float[Tensor, "keys m"]
    weights: Float[Tensor, "b t"]
    found: dict[int, Float[Tensor, "b h m"]] = field(default_factory=dict)

    def record(self, layer: int, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> None:
        """Score a layer from its queries (b, h, t, d) and keys (b, h_kv, keys, d), in fp32."""
        if layer not in self.layers:
            return
        query, key = query.float(), key.repeat_interleave(query.shape[1] // key.shape[1], dim=1).float()
        parts = [self._part(columns, query, key, mask, scaling) for columns in self.membership.split(key.shape[-1], 1)]
        self.found[layer] = torch.cat(parts, dim=2)
        if layer == max(self.layers):
            raise _Enough

    def _part(
        self, columns: Float[Tensor, "keys c"], query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None
    ) -> Float[Tensor, "b h c"]:
        """Score some prompts: attention with their columns as values, filled up to the width of the keys.

        The kernels that store no attention matrix want values as wide as keys.
        """
        filled = nn.functional.pad(columns, (0, key.shape[-1] - columns.shape[1]))
        values = filled.expand(*key.shape[:2], -1, -1)
        per_token = nn.functional.scaled_dot_product_attention(query, key, values, attn_mask=mask, scale=scaling)
        return torch.einsum("bhtc,bt->bhc", per_token[..., : columns.shape[1]], self.weights)


_RECORDER: ContextVar[_Recorder] = ContextVar("recorder")


def _recording_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as SDPA does, and let the recorder see queries and keys."""
    require_softmax(options)
    _RECORDER.get().record(module.layer_idx, query, key, attention_mask, scaling)
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)


@contextlib.contextmanager
def _recording(model: PreTrainedModel, recorder: _Recorder) -> Iterator[None]:
    """Send the model's attention through `_recording_attention`, and put its own back afterwards."""
    AttentionInterface.register(NAME, _recording_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # an unknown name would get no mask at all
    before, token = model.config._attn_implementation, _RECORDER.set(recorder)
    model.set_attn_implementation(NAME)
    try:
        with contextlib.suppress(_Enough):
            yield
    finally:
        model.set_attn_implementation(before)
        _RECORDER.reset(token)


@torch.no_grad()
def attention_scores(
    runtime: Runtime,
    input_ids: Int[Tensor, "b t"],
    mask: Int[Tensor, "b t"],
    layers: Sequence[int],
    *,
    per_key: bool = True,
    skip_first: int = 0,
    by_head: bool = False,
) -> Float[Tensor, "b l m"] | Float[Tensor, "b l h m"]:
    """Return the scores of all prompts at each of `layers`, in fp32.

    Args:
        mask: 1 on tokens, 0 on pads, on either side.
        layers: in ascending order; the pass ends after the last.
        per_key: "mean" instead of "mass", see above.
        by_head: keep the heads apart instead of taking their mean.
        skip_first: k, how many vectors at the start of each prompt do not count.

    Raises:
        NotSupportedError: a base whose attention is no plain softmax.
        ConfigError: `skip_first` leaves nothing of a prompt.
    """
    prompts, rows = runtime.right_aligned(), len(input_ids)
    lengths, read = [prompt.tokens for prompt in prompts], max(layers) + 1  # the pass ends there
    require_skip(lengths, skip_first)
    keys, values = (
        [torch.cat(parts, dim=1).expand(rows, -1, -1, -1) for parts in zip(*of_prompts, strict=True)]
        for of_prompts in ([one.keys[:read] for one in prompts], [one.values[:read] for one in prompts])
    )
    membership = _membership(lengths, input_ids.shape[1], per_key, skip_first).to(input_ids.device)
    recorder = _Recorder(layers, membership, mask / mask.sum(1, keepdim=True))
    with _recording(runtime.model, recorder):
        runtime.model(
            input_ids=input_ids,
            attention_mask=torch.cat([mask.new_ones(rows, sum(lengths)), mask], dim=1),
            position_ids=runtime.slots + (mask.long().cumsum(1) - 1).clamp_min(0),
            use_cache=True,
            **as_argument(runtime.model, new_cache(keys, values)),
        )
    found = torch.stack([recorder.found[layer] for layer in layers], dim=1)
    return found if by_head else found.mean(dim=2)


def _membership(lengths: Sequence[int], text: int, per_key: bool, skip_first: int) -> Float[Tensor, "keys m"]:
    """Return what each key counts for each prompt: 1 or 1 / (n_i − k) for the keys of prompt i, 0 elsewhere."""
    blocks = [torch.ones(n, 1) / (n - skip_first if per_key else 1) for n in lengths]
    for block in blocks:
        block[:skip_first] = 0
    return torch.cat([torch.block_diag(*blocks), torch.zeros(text, len(lengths))])
