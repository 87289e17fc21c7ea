"""Soft prompts as vectors in front of each row, computed anew with it: for bases that cannot put cached ones there.

A sliding window forgets a prompt, a recurrent layer folds it into its state, ALiBi counts slots: their layers have no
keys and values that could stand before any text. What is always right is what training did, prompt and text as one
row. Rows of a batch are aligned at their right end:

    slot       0 …    last − n − t + 1 …    last − t + 1 … last
    holds      -      the prompt            the text
    mask       0      1                     1
    position   -      0 … n − 1             n, n + 1, …            where the base takes positions

It costs n tokens more a row in each pass over a text, and nothing while decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from budwood.tuning.prompt_cache import align_left, check_room, takes, written_ids
from budwood.tuning.prompt_support import require_equal


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """Rows of prompt and text, aligned at their right end.

    Attributes:
        vectors: (b, slots, d).
        mask: 1 on prompt and text, (b, slots).
        prompts: the lengths n of the rows' prompts, (b,).
        texts: how many tokens each row's text has, (b,).
    """

    vectors: Float[Tensor, "b slots d"]
    mask: Int[Tensor, "b slots"]
    prompts: Int[Tensor, " b"]
    texts: Int[Tensor, " b"]

    @property
    def slots(self) -> int:
        """The length of the longest row."""
        return self.mask.shape[1]

    def prompt_slots(self, skip: int = 0) -> Float[Tensor, "b slots"]:
        """Return 1 on the slots of each row's prompt, its first `skip` vectors left out, and 0 elsewhere."""
        place = torch.arange(self.slots, device=self.mask.device) - (self.slots - self.texts - self.prompts)[:, None]
        return ((place >= skip) & (place < self.prompts[:, None])).float()

    def text_slots(self) -> Float[Tensor, "b slots"]:
        """Return 1 on the slots of each row's text, 0 elsewhere."""
        place = torch.arange(self.slots, device=self.mask.device)
        return (place >= self.slots - self.texts[:, None]).float()


class PromptRows:
    """The m prompts of one model as vectors.

    Args:
        model: the base, in evaluation mode.
        vectors: of each prompt, fp32; cast to the precision of the model's embeddings, as PEFT's forward does.
    """

    def __init__(self, model: PreTrainedModel, vectors: Sequence[Float[Tensor, "n d"]]) -> None:
        self.model = model
        self.vectors = tuple(vectors)

    @property
    def slots(self) -> int:
        """The length n_max of the longest prompt."""
        return max(map(len, self.vectors))

    def join(
        self, selection: Int[Tensor, " b"], input_ids: Int[Tensor, "b t"], mask: Int[Tensor, "b t"]
    ) -> JoinedRows:
        """Put each row's prompt right in front of its text.

        Args:
            selection: the prompt of each row.
            mask: 1 on tokens, 0 on pads, on whichever side these are.
        """
        embedded = self.model.get_input_embeddings()(input_ids)
        chosen = [self.vectors[i].to(embedded) for i in selection.tolist()]
        rows = [
            torch.cat([vectors, text[kept]]) for vectors, text, kept in zip(chosen, embedded, mask.bool(), strict=True)
        ]
        prompts = torch.tensor([len(one) for one in chosen], device=embedded.device)
        full = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left")
        place = torch.arange(full.shape[1], device=embedded.device)
        texts = mask.sum(dim=1)
        joined_mask = (place >= full.shape[1] - (prompts + texts)[:, None]).to(mask.dtype)
        return JoinedRows(full, joined_mask, prompts, texts)

    @torch.no_grad()
    def run_joined(self, rows: JoinedRows, **options: Any) -> Any:
        """Return the model's output for prompts and texts; its logits are (b, slots, vocabulary)."""
        return self.model(
            inputs_embeds=rows.vectors,
            attention_mask=rows.mask,
            use_cache=False,
            **positions_of(self.model, rows.mask),
            **options,
        )

    def run(
        self, selection: Int[Tensor, " b"], input_ids: Int[Tensor, "b t"], mask: Int[Tensor, "b t"], **options: Any
    ) -> Any:
        """Run each row behind its prompt; the output's logits are those of the text, in place, (b, t, vocabulary).

        Where `options` ask for the last logits only, they are those of the last tokens, whatever the side of the pads.
        """
        rows = self.join(selection, input_ids, mask)
        output = self.run_joined(rows, **options)
        if output.logits.shape[1] < rows.slots:
            return output
        place = (rows.slots - rows.texts)[:, None] + (mask.long().cumsum(1) - 1).clamp_min(0)
        output.logits = output.logits[torch.arange(len(place), device=place.device)[:, None], place]
        return output

    @torch.no_grad()
    def first_logits(self, number: int) -> Float[Tensor, " vocabulary"]:
        """Return the fp32 logits of the token right after a prompt."""
        vectors = self.vectors[number].to(self.model.get_input_embeddings().weight)
        return self.model(inputs_embeds=vectors[None], use_cache=False).logits[0, -1].float()

    def generate(
        self, selection: Int[Tensor, " b"], input_ids: Int[Tensor, "b t"], mask: Int[Tensor, "b t"], **options: Any
    ) -> Int[Tensor, "rows t_new"]:
        """Continue each row behind its prompt; as `generate_prompted`, whose arguments these are.

        To processors of logits and to streamers, slots without a token look like repetitions of the row's last one.

        Raises:
            DataError: prompt, text and new tokens do not fit the model's context.
        """
        input_ids, mask = align_left(input_ids, mask)
        rows = self.join(selection, input_ids, mask)
        check_room(self.model, rows.slots, options)
        seen = input_ids[:, -1:].repeat(1, rows.slots)  # generate counts its steps from ids as long as the vectors
        kept = min(rows.slots, input_ids.shape[1])
        seen[:, -kept:] = torch.where(mask[:, -kept:].bool(), input_ids[:, -kept:], seen[:, -kept:])
        written = written_ids(
            self.model, options, input_ids=seen, inputs_embeds=rows.vectors, attention_mask=rows.mask
        )
        given = input_ids.repeat_interleave(len(written) // len(input_ids), dim=0)
        return torch.cat([given, written[:, rows.slots :]], dim=1)


def positions_of(model: PreTrainedModel, mask: Int[Tensor, "b t"]) -> dict[str, Int[Tensor, "b t"]]:
    """Return positions that count the tokens of each row, as an argument; nothing where the base takes none."""
    return {"position_ids": (mask.long().cumsum(1) - 1).clamp_min(0)} if takes(model, "position_ids") else {}


@torch.no_grad()
def prove_rows(rows: PromptRows) -> None:
    """Try the base on two rows of different lengths against each alone, and on vectors against tokens.

    A base that does not mind the mask carries what pads hold into the text, and one that reads more of a token than
    its embedding loses that behind vectors; neither tells.

    Raises:
        NotSupportedError: what should be equal differs by more than rounding.
    """
    model = rows.model
    count = model.get_input_embeddings().num_embeddings
    ids = torch.arange(6, device=model.device).view(2, 3) % count
    mask = torch.tensor([[1, 1, 1], [0, 0, 1]], device=model.device)
    embedded = model.get_input_embeddings()(ids[:1])
    plain = model(input_ids=ids[:1], use_cache=False).logits
    require_equal(
        model, "vectors in place of tokens change", model(inputs_embeds=embedded, use_cache=False).logits, plain
    )
    first = torch.zeros(2, dtype=torch.long, device=model.device)
    together = rows.run(first, ids, mask).logits[1, -1]
    require_equal(model, "pads change", together, rows.run(first[:1], ids[1:, -1:], mask[1:, -1:]).logits[0, -1])
