"""Bases on which prompts cannot be cached: each row is prompt and text, and equals plain prompt tuning."""

from __future__ import annotations

import pytest
import torch
from peft import PromptTuningConfig
from torch.testing import assert_close
from transformers import RwkvConfig, RwkvForCausalLM, T5Config, T5ForConditionalGeneration

from budwood.errors import DataError, NotSupportedError
from budwood.methods.idp.attention_rows import attention_row_scores
from budwood.methods.idp.attention_scores import attention_scores
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.runtime import Prompt, Runtime
from budwood.methods.idp.support import reads_together
from budwood.tuning.soft_prompts import SoftPrompt
from tests import tiny
from tests.methods.idp import other_bases
from tests.methods.idp.banks import (
    LENGTHS,
    TEXTS,
    batch,
    make_bank,
    peft_model,
    plain_greedy,
    plain_logits,
    save_prompts,
    vectors,
)
from tests.methods.idp.test_selectors import naive_nll, some_texts

MIXED = [0, 1, 2, 1]
GREEDY = dict(max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=257)


def bank_on(base, lengths=LENGTHS, **options) -> PromptBank:
    prompts = []
    for number, length in enumerate(lengths):
        drawn = torch.randn(length, 32, generator=torch.Generator().manual_seed(100 + number)) * 0.6
        prompts.append(Prompt(f"p{number}", drawn, PromptTuningConfig(num_virtual_tokens=length)))
    return PromptBank(base, prompts, **options)


@pytest.fixture(params=sorted(other_bases.MAKERS))
def bank(request: pytest.FixtureRequest) -> PromptBank:
    return bank_on(other_bases.made(request.param))


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_each_row_equals_its_prompt_alone(bank, left):  # properties 2, 3, 5
    ids, mask = batch(left=left)
    logits = bank(ids, mask, MIXED).logits
    for number, text, row, kept in zip(MIXED, TEXTS, logits, mask.bool()):
        assert_close(row[kept], plain_logits(bank, number, text), rtol=0, atol=1e-4)


def test_the_last_logits_alone_are_those_of_the_last_tokens():
    bank = bank_on(other_bases.made("mistral"))
    for left in (True, False):
        last = bank(*batch(left=left), MIXED, logits_to_keep=1).logits[:, 0]
        wanted = [plain_logits(bank, number, text)[-1] for number, text in zip(MIXED, TEXTS)]
        assert_close(last, torch.stack(wanted), rtol=0, atol=1e-4)


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_greedy_generation_equals_whole_forward_passes(bank, left):  # property 11
    ids, mask = batch(left=left)
    written = bank.generate(ids, mask, selection=MIXED, **GREEDY)
    for number, text, row in zip(MIXED, TEXTS, written):
        assert row[-6:].tolist() == plain_greedy(bank, number, text, 6)
        assert row[-6 - len(text) : -6].tolist() == text


def test_beams_are_those_of_single_rows(bank):
    ids, mask = batch()
    options = GREEDY | dict(num_beams=3, num_return_sequences=2, length_penalty=0.0, use_cache=False)
    together = bank.generate(ids, mask, selection=MIXED, **options)
    for row, text in enumerate(TEXTS):
        alone = bank.generate(torch.tensor([text]), selection=MIXED[row : row + 1], **options)
        assert torch.equal(together[2 * row : 2 * row + 2, -6:], alone[:, -6:])


def test_likelihood_is_that_of_one_sequence(bank):
    wanted = [[-naive_nll(bank, number, text) for number in range(3)] for text in TEXTS]
    assert_close(bank.scores(*batch()).double(), torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-5)
    chosen = bank.select(*batch())
    assert chosen.context is None and chosen.selection.tolist() == bank.scores(*batch()).argmax(1).tolist()


def test_a_router_is_fitted_and_chooses(bank):
    other = PromptBank(bank.model, bank.prompts, selector="router")
    other.calibrate(some_texts(12))
    assert_close(other.scores(*batch(left=False)), other.scores(*batch()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", other_bases.ATTENTIVE)
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_attention_equals_loops_over_each_row(name, left):  # property 7
    bank = bank_on(other_bases.made(name))
    found = attention_row_scores(bank._runtime, *batch(left=left), (0, 1), skip_first=1).double()
    for row, text in zip(found, TEXTS):
        for number, length in enumerate(LENGTHS):
            wanted = naive_row_score(bank, number, text, length, skip=1)
            assert_close(row[:, number], wanted, rtol=0, atol=1e-6)


@torch.no_grad()
def naive_row_score(bank: PromptBank, number: int, text: list[int], length: int, *, skip: int) -> torch.Tensor:
    """Attention to one prompt in a row of its own, by loops."""
    embedded = bank.model.get_input_embeddings()(torch.tensor(text))
    joined = torch.cat([vectors(bank, number), embedded])[None]
    before = bank.model.config._attn_implementation
    if bank.model._can_set_attn_implementation():
        bank.model.set_attn_implementation("eager")
    found = bank.model(inputs_embeds=joined, use_cache=False, output_attentions=True).attentions
    bank.model.config._attn_implementation = before
    scores = []
    for attention in found:
        total = 0.0
        for head in attention[0].double():
            for token in range(length, length + len(text)):
                total += sum(float(head[token, key]) for key in range(skip, length)) / (length - skip)
        scores.append(total / (attention.shape[1] * len(text)))
    return torch.tensor(scores, dtype=torch.float64)


@pytest.mark.parametrize("per_key", [True, False], ids=["mean", "mass"])
def test_one_prompt_scores_alike_in_both_forms(tmp_path, per_key):
    bank = make_bank(tmp_path, lengths=(5,))
    options = dict(per_key=per_key, skip_first=1)
    together = attention_scores(bank._runtime, *batch(), (0, 1), **options)
    assert_close(attention_row_scores(bank._runtime, *batch(), (0, 1), **options), together, rtol=0, atol=1e-7)
    assert bank.model.config._attn_implementation == "sdpa"


def test_a_window_hides_the_prompt_and_a_wide_one_changes_nothing():
    text = [list(range(10, 30))]
    near, wide = (bank_on(other_bases.mistral(window).eval(), (3,)) for window in (4, 100))
    wide.model.load_state_dict(near.model.state_dict())
    full = bank_on(other_bases.mistral(None).eval(), (3,))
    full.model.load_state_dict(near.model.state_dict())
    assert full._runtime.cached and not wide._runtime.cached
    assert_close(wide(*batch(text), [0]).logits, full(*batch(text), [0]).logits, rtol=0, atol=1e-4)
    mass = attention_row_scores(near._runtime, *batch(text), (0,), per_key=False)
    assert 0 < mass < 3 / len(text[0])  # three tokens at most see any of it


def test_attention_is_calibrated_and_chooses_on_a_base_with_windows():
    bank = bank_on(other_bases.made("gemma2"), selector="attention")
    bank.calibrate(some_texts(60))
    ids, mask = batch()
    chosen = bank.select(ids, mask)
    assert len(set(chosen.selection.tolist())) > 1
    again = [int(bank.select(torch.tensor([text])).selection) for text in TEXTS]
    assert chosen.selection.tolist() == again  # property 4
    assert bank.model.config._attn_implementation == "eager"


def test_which_form_reads_attention(tmp_path):
    assert reads_together(tiny.llama()) and reads_together(tiny.gpt2())
    assert not any(reads_together(other_bases.made(name)) for name in other_bases.MAKERS)


@pytest.mark.parametrize(("name", "layers"), [("mamba", 0), ("lfm2", 1)])
def test_layers_that_do_not_attend_are_refused_for_attention(name, layers):
    bank = bank_on(other_bases.made(name), selector="paper")
    with pytest.raises(NotSupportedError, match=f"for {layers} of its layers") as caught:
        bank.select(*batch())
    assert '"likelihood"' in caught.value.action


def test_a_recurrent_base_that_does_not_mind_the_mask_is_found_out():
    torch.manual_seed(0)
    config = RwkvConfig(vocab_size=259, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32)
    with pytest.raises(NotSupportedError, match="pads change its logits"):
        bank_on(RwkvForCausalLM(config).eval())(*batch(), MIXED)


def test_a_base_that_reads_more_of_a_token_than_its_embedding_is_found_out(monkeypatch):
    base = other_bases.made("mistral")
    forward = base.forward

    def reads_ids(input_ids=None, inputs_embeds=None, attention_mask=None, position_ids=None, use_cache=False):
        vectors = base.get_input_embeddings()(input_ids) * 2 if inputs_embeds is None else inputs_embeds
        return forward(inputs_embeds=vectors, attention_mask=attention_mask, position_ids=position_ids)

    monkeypatch.setattr(base, "forward", reads_ids)
    with pytest.raises(NotSupportedError, match="vectors in place of tokens change its logits"):
        bank_on(base)._runtime.rows()


def test_bases_on_which_no_form_is_exact_are_refused(tmp_path):
    places = save_prompts(tmp_path, (3,))
    small = dict(vocab_size=259, d_model=32, num_layers=2, d_kv=8, num_heads=4)
    bases = {
        "frequencies": tiny.llama(rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=10000.0)),
        "encoder": T5ForConditionalGeneration(T5Config(**small, decoder_start_token_id=0)),
    }
    for word, base in bases.items():
        with pytest.raises(NotSupportedError, match=word):
            Runtime(base.eval(), PromptBank.from_adapters(tiny.llama(), places).prompts)


def test_vectors_and_weights_that_change_are_seen():  # property 9
    bank = bank_on(other_bases.made("bloom"))
    before = bank.scores(*batch())
    with torch.no_grad():
        vectors(bank, 0).mul_(-2)
    after = bank.scores(*batch())
    assert torch.equal(after[:, 1:], before[:, 1:]) and not torch.equal(after[:, 0], before[:, 0])


def test_a_text_that_leaves_no_room_is_refused():
    base = other_bases.made("mistral")
    base.config.max_position_embeddings = 20
    with pytest.raises(DataError, match="at most 20"):
        bank_on(base).generate(torch.full((1, 9), 7), selection=[2], **GREEDY)


def test_a_single_prompt_of_peft_generates_on_a_base_with_windows(tmp_path):
    base = other_bases.made("mistral")
    bank = PromptBank.from_adapters(base, save_prompts(tmp_path, (5,), base))
    prompted = SoftPrompt(peft_model(bank, tmp_path / "p0"))
    assert prompted.virtual_tokens == 5
    ids, mask = batch()
    written = prompted.generate(ids, mask, **GREEDY)
    for text, row in zip(TEXTS, written):
        assert row[-6:].tolist() == plain_greedy(bank, 0, text, 6)
    logits = prompted(ids, mask).logits
    assert_close(logits[1], plain_logits(bank, 0, TEXTS[1]), rtol=0, atol=1e-4)
