"""Scores from attention against loops over eager attention in one block-masked sequence."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from transformers import Gemma2Config, Gemma2ForCausalLM

from budwood.errors import ConfigError, NotSupportedError
from budwood.methods.idp import attention_scores as module
from budwood.methods.idp.attention_rows import attention_row_scores
from budwood.methods.idp.attention_scores import attention_scores
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.support import chosen_layers, reads_together, require_softmax
from tests import tiny
from tests.methods.idp.banks import LENGTHS, MODELS, TEXTS, batch, make_bank, naive_scores, save_prompts, vectors

ALL = (0, 1)


def scored(bank: PromptBank, texts=TEXTS, *, left=True, layers=ALL, **options) -> torch.Tensor:
    return attention_scores(bank._runtime, *batch(texts, left=left), layers, **options)


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_scores_equal_eager_attention_in_one_sequence(name, left, tmp_path):  # properties 5, 7, 8
    bank = make_bank(tmp_path, name)
    found = scored(bank, left=left).double()
    for row, text in zip(found, TEXTS):
        assert_close(row, naive_scores(bank, text), rtol=0, atol=1e-7)


@pytest.mark.parametrize("options", [dict(per_key=False), dict(skip=1), dict(per_key=False, skip=2)])
def test_mass_and_skipped_vectors(options, tmp_path):
    bank = make_bank(tmp_path)
    found = scored(bank, per_key=options.get("per_key", True), skip_first=options.get("skip", 0)).double()
    for row, text in zip(found, TEXTS):
        assert_close(row, naive_scores(bank, text, **options), rtol=0, atol=1e-7)


def test_prompts_laid_end_to_end_are_scored_wrongly(tmp_path):  # property 6, the mutation check
    bank = make_bank(tmp_path)
    wrong = torch.stack([naive_scores(bank, text, aligned=False) for text in TEXTS])
    assert (scored(bank).double() - wrong).abs().max() > 1e-4
    order = [2, 0, 1]
    turned = PromptBank(bank.model, [bank._runtime.prompts[i] for i in order])
    wrong_turned = torch.stack([naive_scores(turned, text, aligned=False) for text in TEXTS])
    assert (wrong_turned - wrong[:, :, order]).abs().max() > 1e-4


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_order_of_the_prompts_does_not_matter(name, tmp_path):  # property 6
    bank = make_bank(tmp_path, name)
    order = [2, 0, 1]
    turned = PromptBank(bank.model, [bank._runtime.prompts[i] for i in order])
    assert_close(scored(turned), scored(bank)[:, :, order], rtol=0, atol=1e-7)


def test_a_row_is_scored_as_if_it_were_alone(tmp_path):  # property 4
    bank = make_bank(tmp_path)
    for row, text in zip(scored(bank), TEXTS):  # but for the last digit of the base's matrix products
        assert_close(scored(bank, [text])[0], row, rtol=0, atol=1e-7)


def test_prompts_scored_twice_tie_and_the_first_wins(tmp_path):  # property 13
    places = save_prompts(tmp_path, (4, 6))
    bank = PromptBank.from_adapters(tiny.llama(), places, selector="paper")
    bank.add(places[0], name="twin")
    bank.add(places[1], name="other twin")
    scores = bank.scores(*batch())
    assert_close(scores[:, :2], scores[:, 2:], rtol=0, atol=1e-7)
    assert set(bank.select(*batch()).selection.tolist()) <= {0, 1}


def test_uniform_attention_is_neutral_to_length_as_a_mean_and_not_as_mass(tmp_path):  # property 14
    bank = make_bank(tmp_path)
    with torch.no_grad():
        bank.model.model.layers[0].self_attn.k_proj.weight.zero_()
    mean = scored(bank, layers=(0,))[:, 0]
    assert_close(mean, mean[:, :1].expand_as(mean), rtol=0, atol=1e-7)
    mass = scored(bank, layers=(0,), per_key=False)[:, 0]
    assert_close(mass / mass[:, :1], torch.tensor(LENGTHS).expand(4, -1) / LENGTHS[0], rtol=0, atol=1e-5)


def test_the_effect_on_others_is_the_common_normaliser(tmp_path):  # property 10
    """Changing one prompt scales, at each token and head, what the others get; one token and one head show it."""
    base = tiny.llama(num_attention_heads=1, num_key_value_heads=1)
    bank = PromptBank.from_adapters(base, save_prompts(tmp_path, model=base))
    before = scored(bank, [[9]], layers=(0,))[0, 0]
    with torch.no_grad():
        vectors(bank, 2).mul_(-4)
    after = scored(bank, [[9]], layers=(0,))[0, 0]
    assert not torch.equal(after, before)
    assert_close(after[0] / before[0], after[1] / before[1], rtol=1e-5, atol=0)


def test_the_pass_ends_after_the_last_layer_and_leaves_the_model(tmp_path):
    bank = make_bank(tmp_path)
    bank._runtime.right_aligned()
    seen: list[int] = []
    hooks = [
        layer.mlp.register_forward_hook(lambda m, inputs, output, i=i: seen.append(i))
        for i, layer in enumerate(bank.model.model.layers)
    ]
    scored(bank, layers=(0,))
    assert seen == []
    scored(bank, layers=(1,))
    assert seen == [0]
    for hook in hooks:
        hook.remove()
    assert bank.model.config._attn_implementation == "sdpa"
    with pytest.raises(RuntimeError):
        attention_scores(bank._runtime, torch.tensor([[9]]), torch.ones(1, 2, dtype=torch.long), ALL)
    assert bank.model.config._attn_implementation == "sdpa"


def test_one_layer_is_the_same_with_and_without_the_others(tmp_path):
    bank = make_bank(tmp_path)
    assert torch.equal(scored(bank, layers=(0,))[:, 0], scored(bank)[:, 0])
    assert torch.equal(scored(bank, layers=(1,))[:, 0], scored(bank)[:, 1])


def test_no_attention_matrix_is_stored(tmp_path, monkeypatch):
    """Values are as wide as keys, which the fused kernels need; and no tensor of the pass is (t, keys)."""
    bank, seen = make_bank(tmp_path), []
    bank._runtime.right_aligned()
    original = module.nn.functional.scaled_dot_product_attention

    def looking(query, key, value, **options):
        seen.append((key.shape[-1], value.shape[-1], options["attn_mask"].shape[1]))
        return original(query, key, value, **options)

    monkeypatch.setattr(module.nn.functional, "scaled_dot_product_attention", looking)
    scored(bank, layers=(0,))
    assert seen == [(8, 8, 1)]


def test_more_prompts_than_the_width_of_a_head(tmp_path):
    bank = make_bank(tmp_path, lengths=tuple(2 + i % 3 for i in range(11)))  # heads are 8 wide
    for row, text in zip(scored(bank).double(), TEXTS):
        assert_close(row, naive_scores(bank, text), rtol=0, atol=1e-7)


def test_half_precision_scores_the_same(tmp_path):  # property 18
    bank = make_bank(tmp_path)
    fine = scored(bank)
    bank.to(torch.bfloat16)
    assert (scored(bank) - fine).abs().max() < 2e-3


def test_layers_and_skips_that_do_not_exist_are_refused(tmp_path):
    bank = make_bank(tmp_path)
    assert chosen_layers(None, bank.model) == ALL and chosen_layers((-1, 0, 1), bank.model) == ALL
    for layers in ((2,), (-3,), ()):
        with pytest.raises(ConfigError, match="scored"):
            chosen_layers(layers, bank.model)
    with pytest.raises(ConfigError, match="fewer than 3"):
        scored(bank, skip_first=3)


def test_a_softmax_that_is_not_plain_is_refused():
    with pytest.raises(NotSupportedError, match="softcap"):
        require_softmax({"softcap": 50.0, "dropout": 0.0})
    require_softmax({"softcap": None, "sliding_window": None})


def test_softcapped_attention_is_read_in_rows_and_not_in_one_pass(tmp_path):
    """Gemma 2 without windows: its prompts can be cached, but its attention has a soft cap."""
    small = dict(vocab_size=259, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    config = Gemma2Config(**small, intermediate_size=48, head_dim=8, layer_types=["full_attention"] * 2)
    torch.manual_seed(0)
    base = Gemma2ForCausalLM._from_config(config, attn_implementation="eager").eval()
    bank = PromptBank.from_adapters(base, save_prompts(tmp_path), selector="paper")
    assert bank._runtime.cached and not reads_together(base)
    with pytest.raises(NotSupportedError, match="softcap"):
        attention_scores(bank._runtime, *batch(), ALL)
    assert base.config._attn_implementation == "eager"
    assert torch.equal(bank.scores(*batch()), attention_row_scores(bank._runtime, *batch(), (0,))[:, 0])
