"""Any prompt in front of any row, from one cache: equal to plain prompt tuning, row by row."""

from __future__ import annotations

import pytest
import torch
import transformers
from packaging.version import Version
from torch.testing import assert_close
from transformers import GenerationConfig
from transformers.generation import BaseStreamer

from budwood.errors import DataError, NotSupportedError, UsageError
from budwood.methods.idp import runtime as runtime_module
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.selectors import LikelihoodSelector
from budwood.tuning.attach import quiet_peft
from budwood.tuning.prompt_cache import PromptStack
from tests import tiny
from tests.methods.idp.banks import (
    LENGTHS,
    MODELS,
    TEXTS,
    batch,
    make_bank,
    peft_model,
    plain_greedy,
    plain_logits,
    save_prompts,
    vectors,
)

MIXED = [0, 1, 2, 1]
GREEDY = dict(max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=257)


@pytest.fixture(params=sorted(MODELS))
def bank(request: pytest.FixtureRequest, tmp_path) -> PromptBank:
    return make_bank(tmp_path, request.param)


def rows_of(logits: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    return [row[kept.bool()] for row, kept in zip(logits, mask)]


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_each_row_equals_its_prompt_alone(bank, left):  # properties 2, 3, 5, 8
    ids, mask = batch(left=left)
    found = rows_of(bank(ids, mask, MIXED).logits, mask)
    for number, text, logits in zip(MIXED, TEXTS, found):
        assert_close(logits, plain_logits(bank, number, text), rtol=0, atol=1e-5)


def test_one_prompt_equals_pefts_forward(tmp_path):  # property 1
    bank = make_bank(tmp_path, lengths=(5,))
    ids, mask = batch(left=False)
    found = rows_of(bank(ids, mask).logits, mask)
    with torch.no_grad():
        wanted = rows_of(peft_model(bank, tmp_path / "p0")(input_ids=ids, attention_mask=mask).logits[:, 5:], mask)
    for one, other in zip(found, wanted):
        assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_greedy_generation_equals_whole_forward_passes(bank, left):  # property 11
    ids, mask = batch(left=left)
    written = bank.generate(ids, mask, selection=MIXED, **GREEDY)
    for number, text, row in zip(MIXED, TEXTS, written):
        assert row[-6:].tolist() == plain_greedy(bank, number, text, 6)


def test_the_cache_grows_by_one_slot_a_step(tmp_path):  # properties 11 and 12
    bank = make_bank(tmp_path)
    ids, mask = batch()
    seen: list[tuple[int, int]] = []

    def look(module, inputs, named, output):
        key_mask = named["attention_mask"]
        seen.append((key_mask.shape[-1], int((~key_mask[0, 0, -1]).sum())))

    bank(ids, mask, [0, 0, 0, 0])  # the prompts are encoded now, and not under the hook
    hook = bank.model.model.layers[0].register_forward_hook(look, with_kwargs=True)
    bank.generate(ids, mask, selection=[0, 0, 0, 0], **GREEDY)
    hook.remove()
    slots = max(LENGTHS) + ids.shape[1]
    hidden = max(LENGTHS) - LENGTHS[0] + ids.shape[1] - len(TEXTS[0])
    assert seen == [(slots + step, hidden) for step in range(6)]


@pytest.mark.filterwarnings("ignore:Position ids are not supported:UserWarning")
@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_pefts_own_generation_is_wrong_where_ours_is_right(tmp_path):
    """A reminder: when this fails, PEFT has been mended for this version, and nothing here depends on it."""
    bank = make_bank(tmp_path, lengths=(5,))
    with quiet_peft():
        theirs = peft_model(bank, tmp_path / "p0").generate(
            input_ids=torch.tensor([TEXTS[1]]), attention_mask=torch.ones(1, len(TEXTS[1]), dtype=torch.long), **GREEDY
        )
    wanted = plain_greedy(bank, 0, TEXTS[1], 6)
    assert (theirs[0, -6:].tolist() == wanted) is (Version(transformers.__version__) < Version("5.24"))
    assert bank.generate(torch.tensor([TEXTS[1]]), **GREEDY)[0, -6:].tolist() == wanted


@pytest.mark.parametrize("selector", ["forced", "likelihood"])
def test_beams_of_a_batch_equal_those_of_single_rows(tmp_path, selector):
    bank = make_bank(tmp_path)
    ids, mask = batch()
    options = GREEDY | dict(num_beams=3, num_return_sequences=2, length_penalty=0.0)
    chosen = MIXED if selector == "forced" else bank.select(ids, mask)
    together = bank.generate(ids, mask, selection=chosen, **options)
    assert len(together) == 8
    for row, text in enumerate(TEXTS):
        one = torch.tensor([text])
        alone = bank.generate(one, selection=MIXED[row : row + 1] if selector == "forced" else None, **options)
        assert torch.equal(together[2 * row : 2 * row + 2, -6:], alone[:, -6:])


def test_a_beam_search_of_width_one_step_takes_the_likeliest(tmp_path):
    """With two beams, one step and two sequences, the best two tokens of the prompt's own logits come out."""
    bank = make_bank(tmp_path)
    options = GREEDY | dict(max_new_tokens=1, num_beams=2, num_return_sequences=2)
    written = bank.generate(torch.tensor([TEXTS[3]]), selection=[2], **options)
    assert written[:, -1].tolist() == plain_logits(bank, 2, TEXTS[3])[-1].topk(2).indices.tolist()


def test_sampling_follows_the_chosen_prompt(tmp_path):
    bank = make_bank(tmp_path)
    ids = torch.tensor([TEXTS[0]]).expand(800, -1)
    torch.manual_seed(0)
    drawn = bank.generate(
        ids, selection=[1] * 800, max_new_tokens=1, do_sample=True, top_k=0, temperature=2.0, pad_token_id=257
    )[:, -1]
    wanted = (plain_logits(bank, 1, TEXTS[0])[-1].double() / 2).softmax(-1)
    found = drawn.bincount(minlength=259) / 800
    assert ((found - wanted).abs() <= 5 * (wanted * (1 - wanted) / 800).sqrt() + 1e-9).all()


@pytest.mark.parametrize("selection", [[1], None], ids=["forced", "likelihood"])
def test_streaming_hands_over_each_new_token(tmp_path, selection):
    bank, seen = make_bank(tmp_path), []

    class Streamer(BaseStreamer):
        def put(self, value):
            seen.append(value.flatten().tolist())

        def end(self):
            seen.append("end")

    written = bank.generate(torch.tensor([TEXTS[0]]), selection=selection, streamer=Streamer(), **GREEDY)
    assert seen[0][-len(TEXTS[0]) :] == TEXTS[0] and seen[-1] == "end"
    assert [token for part in seen[1:-1] for token in part] == written[0, len(TEXTS[0]) :].tolist()


def test_the_result_is_a_tensor_of_ids_also_where_more_is_asked_for(tmp_path):
    bank = make_bank(tmp_path)
    plain = bank.generate(torch.tensor([TEXTS[0]]), selection=[2], **GREEDY)
    assert torch.equal(
        bank.generate(torch.tensor([TEXTS[0]]), selection=[2], return_dict_in_generate=True, **GREEDY), plain
    )
    config = GenerationConfig(**GREEDY, num_beams=2)
    assert bank.generate(torch.tensor([TEXTS[0]]), selection=[2], generation_config=config).shape == plain.shape


def test_prompts_are_encoded_once_until_something_changes(tmp_path, monkeypatch):  # property 9
    made: list[int] = []
    original = runtime_module.encode_prompt

    def counted(model, vectors, *, start=0):
        made.append(start)
        return original(model, vectors, start=start)

    monkeypatch.setattr(runtime_module, "encode_prompt", counted)
    bank = make_bank(tmp_path, selector="paper")
    ids, mask = batch()
    for _ in range(3):
        bank(ids, mask, MIXED)
    assert made == [0, 0, 0]
    for _ in range(3):
        bank.scores(ids, mask)
        bank.generate(ids, mask, selection=MIXED, **GREEDY)
    assert made == [0, 0, 0, 6, 4]  # copies that end at 9; the longest begins at 0 in any case
    before = bank(ids, mask, MIXED).logits
    with torch.no_grad():
        bank.model.model.layers[1].self_attn.k_proj.weight.mul_(1.5)
    changed = bank(ids, mask, MIXED).logits
    assert len(made) == 8 and not torch.equal(changed, before)
    bank.to(torch.bfloat16)
    assert bank(ids, mask, MIXED).logits.dtype == torch.bfloat16 and len(made) == 11
    with torch.no_grad():
        vectors(bank, 0).add_(1)
    bank(ids, mask, MIXED)
    assert len(made) == 14


def test_a_prompt_does_not_feel_the_others(tmp_path):  # property 10
    places = save_prompts(tmp_path)
    bank = PromptBank.from_adapters(tiny.llama(), places)
    ids, mask = batch()
    before, keys = bank(ids, mask, [1] * 4).logits, bank._runtime.stack().prompts[1].keys
    with torch.no_grad():
        vectors(bank, 0).mul_(7)
        vectors(bank, 2).add_(3)
    assert torch.equal(bank(ids, mask, [1] * 4).logits, before)
    assert all(torch.equal(a, b) for a, b in zip(bank._runtime.stack().prompts[1].keys, keys))


def test_adding_a_prompt_leaves_the_others(tmp_path, monkeypatch):  # property 13
    places = save_prompts(tmp_path, (3, 9, 5, 12))
    bank = PromptBank.from_adapters(tiny.llama(), places[:2])
    ids, mask = batch()
    before = bank(ids, mask, [0, 1, 1, 0]).logits
    made: list[int] = []
    original = runtime_module.encode_prompt
    monkeypatch.setattr(
        runtime_module, "encode_prompt", lambda model, v, *, start=0: made.append(len(v)) or original(model, v)
    )
    bank.add(places[2])
    assert torch.equal(bank(ids, mask, [0, 1, 1, 0]).logits, before)  # as many slots: bit for bit
    bank.add(places[3], name="long")
    assert_close(bank(ids, mask, [0, 1, 1, 0]).logits, before, rtol=0, atol=1e-5)
    assert made == [5, 12] and bank.names == ["p0", "p1", "p2", "long"]


def test_positions_that_ignore_the_prompts_length_are_wrong_and_found_out(tmp_path, monkeypatch):
    """The mutation: text that always begins at N, as if every row had the longest prompt."""
    bank = make_bank(tmp_path)
    bank._runtime.stack()
    monkeypatch.setattr(
        PromptStack, "positions", lambda self, selection, mask: self.slots + (mask.cumsum(1) - 1).clamp_min(0)
    )
    ids, mask = batch()
    found = rows_of(bank(ids, mask, MIXED).logits, mask)
    assert (found[0] - plain_logits(bank, 0, TEXTS[0])).abs().max() > 1e-3
    with pytest.raises(NotSupportedError, match="empty slots change its logits"):
        make_bank(tmp_path)(ids, mask, MIXED)


def test_a_text_that_leaves_no_room_is_refused(tmp_path):
    bank = make_bank(tmp_path, "gpt2")
    ids = torch.full((1, 250), 7)
    with pytest.raises(DataError, match="at most 256"):
        bank.generate(ids, selection=[0], **GREEDY)


@pytest.mark.parametrize("selection", [MIXED, None], ids=["forced", "likelihood"])
def test_asking_for_no_cache_changes_nothing(tmp_path, selection):  # property 18
    bank = make_bank(tmp_path)
    ids, mask = batch()
    wanted = bank.generate(ids, mask, selection=selection, **GREEDY)
    assert torch.equal(bank.generate(ids, mask, selection=selection, **GREEDY, use_cache=False), wanted)
    config = GenerationConfig(**GREEDY, use_cache=False)
    assert torch.equal(bank.generate(ids, mask, selection=selection, generation_config=config), wanted)


def test_training_mode_is_refused(tmp_path):
    bank = make_bank(tmp_path)
    with pytest.raises(UsageError, match="training mode"):
        bank.train()(*batch(), MIXED)


@pytest.mark.parametrize("selection", [[0, 1, 2, 3], [0, 1], [-1, 0, 0, 0]])
def test_selections_that_do_not_exist_are_refused(tmp_path, selection):
    with pytest.raises(UsageError):
        make_bank(tmp_path)(*batch(), selection)


def test_a_kept_context_gives_what_a_new_pass_gives(tmp_path):
    bank = make_bank(tmp_path, selector=LikelihoodSelector())
    ids, mask = batch(left=False)
    chosen = bank.select(ids, mask)
    assert chosen.context is not None
    passes: list[int] = []
    hook = bank.model.model.layers[0].register_forward_hook(
        lambda m, inputs, output: passes.append(inputs[0].shape[1])
    )
    kept = bank.generate(ids, mask, selection=chosen, **GREEDY)
    assert passes == [1] * 6
    again = bank.generate(ids, mask, selection=chosen, **GREEDY)  # the context is not used up
    hook.remove()
    assert torch.equal(kept, again)
    assert torch.equal(kept, bank.generate(ids, mask, selection=chosen.selection, **GREEDY))
    other = ids + (ids < 100)
    assert torch.equal(
        bank.generate(other, mask, selection=chosen, **GREEDY),
        bank.generate(other, mask, selection=chosen.selection, **GREEDY),
    )


def test_a_kept_context_of_one_token_texts(tmp_path):
    bank = make_bank(tmp_path)
    ids = torch.tensor([[7], [9]])
    chosen = bank.select(ids)
    written = bank.generate(ids, selection=chosen, **GREEDY)
    for number, token, row in zip(chosen.selection.tolist(), ids.tolist(), written):
        assert row[1:].tolist() == plain_greedy(bank, number, token, 6)
