"""GIFT through TRL: `SFTTrainer(peft_config=GiftConfig(...))`, with nothing of budwood's own training."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor, nn

import tests.tiny as tiny
from budwood import GiftConfig

trl = pytest.importorskip("trl")

# TRL switches checkpointing on by default, under a name that transformers 5.24 has replaced.
pytestmark = pytest.mark.filterwarnings("ignore:.gradient_checkpointing.* is deprecated:FutureWarning")

TEXTS = [f"{word} is a word of {len(word)} letters" for word in ("graft", "scion", "stock", "twig", "bud", "rootlet")]
IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def test_sft_trainer_trains_the_groups_and_nothing_else(tmp_path):
    base = tiny.llama()
    before = {name: p.detach().clone() for name, p in base.named_parameters()}
    targets = ["q_proj", "k_proj", "v_proj", "down_proj"]
    sides = dict.fromkeys(targets, "input") | {"down_proj": "output"}
    config = GiftConfig(r=4, target_modules=targets, side=sides, share=[targets[:3]], task_type="CAUSAL_LM")
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path / "run"), max_steps=3, per_device_train_batch_size=2, learning_rate=1e-2,
        report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True, bf16=False,
    )  # fmt: skip
    trainer = trl.SFTTrainer(
        base, arguments, train_dataset=Dataset.from_dict({"text": TEXTS}), processing_class=tiny.tokenizer(),
        peft_config=config,
    )  # fmt: skip
    learned = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    assert {name.rpartition(".")[2] for name in learned} == {"phi", "psi"} and len(learned) == 4
    trainer.train()
    model = trainer.model
    assert all(not torch.equal(p, learned[n]) for n, p in model.named_parameters() if n in learned)
    plain = {n.replace(".base_layer.", "."): p for n, p in model.get_base_model().named_parameters()}
    assert all(torch.equal(plain[name], weight) for name, weight in before.items())
    trainer.save_model(str(tmp_path / "adapter"))
    again = PeftModel.from_pretrained(tiny.llama(), tmp_path / "adapter")
    assert torch.equal(logits(again), logits(model)) and not torch.equal(logits(again), logits(tiny.llama()))
