"""Perplexity against its definition, and that nothing scored is ever read for a choice."""

from __future__ import annotations

import math

import pytest
import torch

from budwood.data.problems import Origin
from budwood.errors import DataError
from budwood.evals.likelihood import select_prompts
from budwood.evals.perplexity import measure_perplexity, windows_of
from tests import tiny
from tests.methods.idp.banks import make_bank, plain_logits

ORIGIN = Origin("text.txt")
TEXT = torch.randint(0, 256, (70,), generator=torch.Generator().manual_seed(0)).tolist()


def naive(logits: torch.Tensor, window: list[int], context: int) -> float:
    log_p = logits.double().log_softmax(-1)
    return -sum(float(log_p[t - 1, window[t]]) for t in range(context, len(window)))


def test_windows_hold_all_of_the_text_but_a_rest_without_a_scored_token():
    windows = windows_of(TEXT, length=32, context=6, origin=ORIGIN)
    assert [len(one.input_ids) for one in windows] == [32, 32]  # the rest of 6 tokens is all context
    assert [one.supervised for one in windows] == [26, 26]
    assert [token for one in windows for token in one.input_ids] == TEXT[:64]
    assert [len(one.input_ids) for one in windows_of(TEXT, length=32, context=5, origin=ORIGIN)] == [32, 32, 6]
    with pytest.raises(DataError, match="a text of 6 tokens"):
        windows_of(TEXT[:6], length=32, context=6, origin=ORIGIN)


def test_equals_the_definition():
    model, windows = tiny.llama(), windows_of(TEXT, length=32, context=8, origin=ORIGIN)
    found = measure_perplexity(model, windows)
    with torch.no_grad():
        wanted = [naive(model(torch.tensor([one.input_ids])).logits[0], one.input_ids, 8) for one in windows]
    assert found.window_nll.tolist() == pytest.approx(wanted, abs=1e-3)
    assert found.tokens == 48 and found.perplexity == pytest.approx(math.exp(sum(wanted) / 48), rel=1e-4)
    assert found.to_dict()["windows"] == 2


def test_a_bank_is_scored_behind_the_prompt_that_the_given_part_chooses(tmp_path):
    bank = make_bank(tmp_path)
    windows = windows_of(TEXT, length=24, context=8, origin=ORIGIN)
    chosen = select_prompts(bank, windows)
    alone = [int(bank.select(torch.tensor([one.input_ids[:8]])).selection[0]) for one in windows]
    assert chosen.tolist() == alone
    found = measure_perplexity(bank, windows, batch_size=3)
    wanted = [naive(plain_logits(bank, i, one.input_ids), one.input_ids, 8) for i, one in zip(alone, windows)]
    assert found.window_nll.tolist() == pytest.approx(wanted, abs=1e-3)


def test_what_is_scored_has_no_say_in_the_choice(tmp_path):
    bank = make_bank(tmp_path)
    first = windows_of(TEXT[:24], length=24, context=8, origin=ORIGIN)
    other = windows_of(TEXT[:8] + TEXT[40:56], length=24, context=8, origin=ORIGIN)
    assert torch.equal(torch.tensor(select_prompts(bank, first)), torch.tensor(select_prompts(bank, other)))
    whole = [scores for scores in (bank.scores(torch.tensor([one.input_ids])) for one in (first[0], other[0]))]
    assert not torch.equal(*whole)  # the whole rows would score otherwise


def test_a_row_without_a_given_part_is_refused_by_a_bank(tmp_path):
    row = windows_of(TEXT, length=24, context=1, origin=ORIGIN)[0]
    row.labels[0] = row.input_ids[0]
    with pytest.raises(DataError, match="without tokens"):
        measure_perplexity(make_bank(tmp_path), [row])
