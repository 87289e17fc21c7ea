"""The estimate of memory against what autograd keeps."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from budwood import peft
from budwood._memory import BatchShape, MemoryEstimate, activation_bytes, base_bytes, logit_bytes
from budwood.models import find_sites
from budwood.training.loss import weighted_nll
from budwood.training.preparation import ready
from budwood.training.settings import TrainingSettings
from budwood.tuning.attach import attach
from budwood.tuning.registry import find_tuner

BATCH = BatchShape(rows=2, length=96, trained=30)
WIDTHS = {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4}
SPECIALS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
MODELS = {
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(vocab_size=500, num_hidden_layers=4, num_key_value_heads=2, **WIDTHS, **SPECIALS)
    ),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(vocab_size=500, num_hidden_layers=4, num_key_value_heads=2, **WIDTHS, **SPECIALS)
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=500, n_embd=128, n_layer=4, n_head=4, embd_pdrop=0, attn_pdrop=0, resid_pdrop=0, **SPECIALS
        )
    ),
}


def kept_bytes(model: torch.nn.Module) -> int:
    """Bytes of the distinct storages that autograd keeps for a batch, weights and buffers left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # alive, so that its address is not used again
        return tensor

    ids = torch.randint(3, 400, (BATCH.rows, BATCH.length))
    labels = ids.clone()
    labels[:, : -BATCH.trained] = -100
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    batch["loss_weights"] = (labels >= 0).float()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        weighted_nll(model, batch)
    return sum(storage.nbytes() for storage in kept.values())


def adapted(name: str, dtype: torch.dtype, tuner: str, **settings: object):
    peft.register()
    base = MODELS[name]().to(dtype).requires_grad_(False)
    sites, vocabulary = find_sites(base), base.config.vocab_size
    chosen = find_tuner(tuner)
    model = attach(base, chosen, chosen.settings(**settings), seed=0).train()
    return model, sites, set(model.base_model.targeted_module_names), vocabulary


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", [{}, {"layers": [2, 3]}])
@pytest.mark.parametrize("tuner", ["gift", "lora"])
@pytest.mark.parametrize("name", MODELS)
def test_activations_are_near_what_autograd_keeps(name, tuner, settings, dtype):
    model, sites, names, vocabulary = adapted(name, dtype, tuner, **settings)
    if settings:  # nothing is kept below the first adapted layer; the estimate does not know that, and errs upwards
        sites = [site for site in sites if site.layer in settings["layers"]]
    widened = names if tuner == "lora" else set()
    guess = activation_bytes(sites, widened, BATCH, dtype, False) + logit_bytes(BATCH, vocabulary, dtype)
    assert 0.55 < guess / kept_bytes(model) < 1.5


def test_checkpointing_keeps_the_inputs_of_layers():
    model, sites, names, vocabulary = adapted("llama", torch.float32, "lora")
    whole = activation_bytes(sites, names, BATCH, torch.float32, False)
    less = activation_bytes(sites, names, BATCH, torch.float32, True)
    with ready(model, TrainingSettings(gradient_checkpointing=True), BATCH.length):
        model.train()
        kept = kept_bytes(model)
    # The one layer that is computed again is at hand in the backward pass only.
    layers = less - whole // 4 + logit_bytes(BATCH, vocabulary, torch.float32)
    assert 0.5 < layers / kept < 1.5 and less < 0.5 * whole


def test_the_base_by_hand():
    base = MODELS["llama"]()
    sites = find_sites(base)
    numbers = sum(p.numel() for p in base.parameters())
    linear = 4 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 352)
    assert base_bytes(numbers, sites, torch.float32, None) == 4 * numbers
    assert base_bytes(numbers, sites, torch.bfloat16, "int8") == linear + 2 * (numbers - linear)
    assert base_bytes(numbers, sites, torch.bfloat16, "nf4") < base_bytes(numbers, sites, torch.bfloat16, "fp4")
    assert MemoryEstimate(2**20, 2**19, 0, 0).to_dict()["total"] == 1.5
