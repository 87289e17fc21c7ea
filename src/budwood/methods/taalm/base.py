"""The body of the paper: the base itself with LoRA, and a scalar head in the place of its own.

    f_t = c · h_t,   h_t the last state at t, which has seen x_1 … x_t (arXiv 2407.16920, section 3)

The paper's weight is σ(f_t); here a softmax over the text makes weights of all bodies' scores. Only relative weights
carry signal, since the loss divides by their sum. c starts at 0, so training starts at uniform weights, as there.
Learned: LoRA on all projections, and c.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from budwood.data.collate import Collator
from budwood.data.render import Encoded
from budwood.methods.taalm.passages import Passage
from budwood.methods.taalm.scorer import TrainableScorer
from budwood.methods.taalm.settings import BaseSettings
from budwood.tuning.attach import quiet_peft


class BaseScorer(TrainableScorer):
    """A copy of the base that scores.

    Args:
        model: a base of its own: its layers are wrapped and its output head is not used.
        settings: what is learned.
        seed: of LoRA's start.
    """

    def __init__(self, model: PreTrainedModel, settings: BaseSettings, *, seed: int) -> None:
        super().__init__()
        config = LoraConfig(
            r=settings.rank, lora_alpha=settings.rank, lora_dropout=settings.dropout, target_modules="all-linear"
        )
        with torch.random.fork_rng(devices=()), quiet_peft():
            torch.manual_seed(seed)
            self.body = get_peft_model(model.requires_grad_(False).base_model, config)
        self.out = nn.Linear(int(model.config.get_text_config().hidden_size), 1, bias=False).to(model.device)
        nn.init.zeros_(self.out.weight)

    def prepare(self, passages: Sequence[Passage]) -> list[Encoded]:
        """Return the ids."""
        return [passage.encoded for passage in passages]

    def forward(self, prepared: Sequence[Encoded]) -> Float[Tensor, "members rows T"]:
        batch = Collator(pad_token_id=0)(prepared)
        inputs = {name: batch[name].to(self.out.weight.device) for name in ("input_ids", "attention_mask")}
        hidden = self.body(**inputs, use_cache=False).last_hidden_state
        return (self.out(hidden.to(self.out.weight.dtype))[..., 0] * inputs["attention_mask"])[None]
