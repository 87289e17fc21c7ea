import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from budwood import GiftConfig
from budwood.errors import NotSupportedError
from budwood.training.blocks import find_blocks, find_cut, mode, run_below
from tests import tiny
from tests.training.rows import collate, lora_model, make_rows
from tests.training.stacks import STACKS, stack, top
from tests.training.test_loss import t5


@pytest.mark.parametrize("name", STACKS)
def test_the_cut_is_the_lowest_adapted_block(name):
    assert find_cut(top(name, (2, 3))) == 2 and find_cut(top(name, (1, 3))) == 1
    assert len(find_blocks(stack(name))[1]) == 4


def test_the_cut_of_shared_and_of_frozen_adapters():
    """Parameters that several blocks share, and a second adapter that is not trained, count where they act."""
    targets = dict(target_modules=["q_proj", "v_proj"], r=2)
    assert find_cut(get_peft_model(stack("llama"), GiftConfig(**targets, layers_to_transform=[2, 3]))) == 2
    model = top("llama", (3,))
    model.add_adapter("second", LoraConfig(**targets, layers_to_transform=[1]))
    assert find_cut(model) == 1


def untied():
    return tiny.llama(num_hidden_layers=4, tie_word_embeddings=False)


def test_a_trained_head_lies_above():
    assert find_cut(top(base=untied(), modules_to_save=["lm_head"])) == 3


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: lora_model(), "lowest layer is trained"),
        (lambda: lora_model(base=t5(), target_modules=["q"]), "encoder-decoder"),
        (
            lambda: get_peft_model(stack("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)),
            "prompt",
        ),
        (lambda: top(base=untied(), modules_to_save=["embed_tokens"]), "embed_tokens.* outside the layers"),
        (lambda: get_peft_model(untied(), LoraConfig(r=2, target_modules=["embed_tokens"])), "outside the layers"),
        (lambda: stack("llama").requires_grad_(False), "no part of the model"),
        (lambda: _trained_head_alone(), "no layer is trained"),
    ],
    ids=["all", "t5", "prompt", "embedding", "adapted embedding", "nothing", "head"],
)
def test_what_cannot_be_cut_says_why(make, reason):
    with pytest.raises(NotSupportedError, match=reason):
        find_cut(make())


def _trained_head_alone():
    model = untied().requires_grad_(False)
    model.lm_head.requires_grad_(True)
    return model


@pytest.mark.parametrize("name", STACKS)
def test_the_state_at_the_cut_is_the_one_that_enters_there(name):
    core, batch = stack(name), collate(make_rows(3))
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    found, _ = run_below(core, 2, inputs)
    with torch.no_grad():
        states = core(**inputs, output_hidden_states=True).hidden_states
    assert torch.equal(found, states[2]) and not any(block._forward_pre_hooks for block in find_blocks(core)[1])


def test_a_model_that_leaves_out_layers_is_refused():
    """OPT's layer drop, always."""
    core = stack("opt").train()
    core.model.decoder.layerdrop = 1.0
    with pytest.raises(NotSupportedError, match="leaves out"):
        run_below(core, 2, {"input_ids": torch.tensor([[1, 2, 3]])})


def test_values_that_layers_hand_on_beside_the_state_are_refused():
    core = stack("bloom")
    for block in core.transformer.h:
        block.register_forward_hook(lambda _, args, given, output: (output[0], given["alibi"]), with_kwargs=True)
    with pytest.raises(NotSupportedError, match="hand on more"):
        run_below(core, 2, {"input_ids": torch.tensor([[1, 2, 3]])})


def test_the_mode_of_each_module_is_put_back():
    model = stack("llama").train()
    model.lm_head.eval()
    with mode(model, training=False):
        assert not any(module.training for module in model.modules())
    assert model.model.training and not model.lm_head.training
