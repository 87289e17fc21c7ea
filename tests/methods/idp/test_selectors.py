"""What the selectors choose: against plain likelihoods, in batches, after calibration, and when it is no choice."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from budwood.errors import ConfigError, DataError, NonFiniteError, NotSupportedError, UsageError
from budwood.methods.idp import selectors
from budwood.methods.idp.attention_scores import attention_scores
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.likelihood import likelihood_pass
from budwood.methods.idp.router import PENALTIES, _solve, decoder_blocks, fit_router, pooled_states
from budwood.methods.idp.selectors import AttentionSelector, LikelihoodSelector, RouterSelector, best
from budwood.methods.idp.tally import Histogram
from tests import tiny
from tests.methods.idp.banks import (
    LENGTHS,
    MODELS,
    TEXTS,
    batch,
    make_bank,
    naive_scores,
    plain_logits,
    save_prompts,
    vectors,
)


def some_texts(count: int = 24, seed: int = 0) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 250, (5 + i % 6,), generator=draw).tolist() for i in range(count)]


def naive_nll(bank: PromptBank, number: int, text: list[int]) -> float:
    """Mean NLL of a text behind a prompt: one sequence, the last vector of the prompt predicts the first token."""
    with torch.no_grad():
        embedded = bank.model.get_input_embeddings()(torch.tensor(text))
        joined = torch.cat([vectors(bank, number), embedded])[None]
        logits = bank.model(inputs_embeds=joined).logits[0, len(vectors(bank, number)) - 1 : -1]
    return float(cross_entropy(logits.double(), torch.tensor(text)))


ALL_SELECTORS = [
    AttentionSelector.paper(),
    AttentionSelector(),
    AttentionSelector(normalise="mass", layers=(-1,)),
    LikelihoodSelector(),
    LikelihoodSelector(tokens=3),
    RouterSelector(),
]
NAMES = ["paper", "z", "mass", "likelihood", "beginning", "router"]


@pytest.fixture(params=ALL_SELECTORS, ids=NAMES)
def ready(request: pytest.FixtureRequest, tmp_path) -> PromptBank:
    bank = make_bank(tmp_path, selector=request.param)
    bank.calibrate(some_texts(60))
    return bank


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_likelihood_is_that_of_one_sequence(name, left, tmp_path):
    bank = make_bank(tmp_path, name)
    found, _ = likelihood_pass(bank._runtime, *batch(left=left))
    wanted = [[naive_nll(bank, number, text) for number in range(3)] for text in TEXTS]
    assert_close(found.double(), torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_likelihood_of_the_beginning_reads_no_more(left, tmp_path):
    bank = make_bank(tmp_path)
    found, cache = likelihood_pass(bank._runtime, *batch(left=left), tokens=5)
    wanted = [[naive_nll(bank, number, text[:5]) for number in range(3)] for text in TEXTS]
    assert_close(found.double(), torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-5)
    assert cache is None


def test_the_kept_cache_is_the_winners(tmp_path):
    bank = make_bank(tmp_path)
    ids, mask = batch()
    nll, cache = likelihood_pass(bank._runtime, ids, mask)
    winners = nll.argmin(1)
    assert len(winners.unique()) > 1
    _, wanted = bank._runtime.run(winners, ids, mask)
    seen = torch.cat([bank._runtime.stack().mask[winners], mask.bool()], dim=1)[:, None, :, None]
    for one, other in zip(cache.layers, wanted.layers):
        assert torch.equal(one.keys * seen, other.keys * seen) and torch.equal(one.values * seen, other.values * seen)


def test_the_choice_does_not_hang_on_batch_or_padding(ready):  # properties 4, 5, 18
    texts = some_texts(12, seed=5)
    together = ready.select(*batch(texts)).selection.tolist()
    assert together == ready.select(*batch(texts, left=False)).selection.tolist()
    alone = [int(ready.select(torch.tensor([text])).selection) for text in texts]
    assert together == alone


def test_the_choice_follows_the_prompts_when_they_are_permuted(ready):  # property 6
    order = [2, 0, 1]
    turned = PromptBank(ready.model, [ready._runtime.prompts[i] for i in order], selector=ready.selector)
    turned.calibrate(some_texts(60))
    texts = some_texts(12, seed=5)
    chosen = ready.select(*batch(texts)).selection.tolist()
    assert [order[i] for i in turned.select(*batch(texts)).selection.tolist()] == chosen


def test_half_precision_chooses_alike_where_it_is_clear(ready):  # property 18
    texts = some_texts(12, seed=5)
    fine = ready.scores(*batch(texts))
    ready.to(torch.bfloat16)
    rough = ready.scores(*batch(texts))
    gap = (fine.topk(2).values @ torch.tensor([1.0, -1.0])).abs()
    clear = gap > 4 * (rough - fine).abs().max(dim=1).values
    assert clear.any() and torch.equal(best(rough)[clear], best(fine)[clear])


def test_fit_weighs_the_heads_of_the_lower_layers(tmp_path):
    bank = make_bank(tmp_path, selector="attention")
    texts = some_texts(12)
    with pytest.raises(ConfigError, match=r"bank\.calibrate"):
        bank.scores(*batch())
    bank.calibrate(texts, batch_size=3)
    weights = bank.selector.heads
    heads = bank.model.config.num_attention_heads
    assert torch.tensor(weights.weight).shape == (2, heads)  # of two layers, two thirds upwards rounded
    assert weights.contexts == 12 and weights.prompts == len(bank)
    attended = attention_scores(bank._runtime, *batch(), (0, 1), skip_first=1, by_head=True)
    assert_close(attended.mean(dim=2), attention_scores(bank._runtime, *batch(), (0, 1), skip_first=1))
    assert_close(bank.scores(*batch()), weights.scores(attended))
    bank.save(tmp_path / "bank")
    again = PromptBank.load(bank.model, tmp_path / "bank")
    assert torch.equal(again.scores(*batch()), bank.scores(*batch()))


def test_z_is_the_mean_of_standardised_layers(tmp_path):
    bank = make_bank(tmp_path, selector=AttentionSelector(normalise="z"))
    texts = some_texts(8)
    with pytest.raises(ConfigError, match=r"bank\.calibrate"):
        bank.scores(*batch())
    bank.calibrate(texts, batch_size=3)
    raw = torch.stack([naive_scores(bank, text, skip=1) for text in texts])
    mean, deviation = raw.mean(0), raw.std(0)
    wanted = torch.stack([((naive_scores(bank, text, skip=1) - mean) / deviation).mean(0) for text in TEXTS])
    assert_close(bank.scores(*batch()).double(), wanted, rtol=0, atol=1e-3)
    mass = AttentionSelector(spread=None, normalise="mass", skip_first=1)
    assert mass.calibrated(bank._runtime, []) is mass


def test_few_texts_are_told_and_one_is_refused(tmp_path, caplog):
    bank = make_bank(tmp_path, selector="attention")
    with caplog.at_level(logging.WARNING):
        bank.calibrate(some_texts(8))
    assert "calibrated on 8 texts" in caplog.text
    for selector in (AttentionSelector(), RouterSelector()):
        bank.selector = selector
        with pytest.raises(DataError):
            bank.calibrate(some_texts(1))
    with pytest.raises(DataError, match="2 labels for 8"):
        bank.calibrate(some_texts(8), labels=[0, 1])


def test_a_calibration_is_for_its_prompts_only(tmp_path):
    places = save_prompts(tmp_path, (3, 5, 4))
    for selector in (AttentionSelector(), RouterSelector()):
        bank = PromptBank.from_adapters(tiny.llama(), places[:2], selector=selector)
        bank.calibrate(some_texts(60))
        bank.select(*batch())
        bank.add(places[2])
        with pytest.raises(ConfigError, match="3 prompts"):
            bank.select(*batch())


def test_pooled_states_are_means_over_tokens_and_stop_early(tmp_path):
    model = tiny.llama(num_hidden_layers=4)
    seen: list[int] = []
    for i, block in enumerate(decoder_blocks(model)):
        block.register_forward_hook(lambda m, inputs, output, i=i: seen.append(i))
    found = {left: pooled_states(model, *batch(left=left), 0.5) for left in (True, False)}
    assert seen == [0, 1, 0, 1]
    for row, text in enumerate(TEXTS):
        with torch.no_grad():
            states = model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
        assert_close(found[True][row], states[2][0].mean(0), rtol=0, atol=1e-5)
        assert_close(found[False][row], states[2][0].mean(0), rtol=0, atol=1e-5)
    assert_close(
        pooled_states(model, *batch(), 0.0)[0], model.get_input_embeddings()(torch.tensor(TEXTS[0])).mean(0).detach()
    )


def test_leave_one_out_is_the_naive_one():
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(9, 4, generator=draw, dtype=torch.float64)
    targets = z @ torch.randn(4, 3, generator=draw, dtype=torch.float64) + torch.randn(
        9, 3, generator=draw, dtype=torch.float64
    )
    kernel = z @ z.T / 4 + 1

    def error(penalty: float) -> float:
        """Fit without context i, predict it, nine times."""
        total = 0.0
        for i in range(9):
            rest = [j for j in range(9) if j != i]
            alpha = torch.linalg.solve(kernel[rest][:, rest] + penalty * torch.eye(8), targets[rest])
            total += float((kernel[i, rest] @ alpha - targets[i]).square().sum())
        return total

    penalty, alpha = _solve(kernel, targets)
    assert penalty == min(PENALTIES, key=error)
    assert_close(alpha, torch.linalg.solve(kernel + penalty * torch.eye(9), targets))


def test_the_folded_map_is_the_kernel_form():
    draw = torch.Generator().manual_seed(1)
    states = torch.randn(12, 5, generator=draw) * torch.tensor([1.0, 100.0, 0.01, 1.0, 0.0]) + 7
    targets = torch.randn(12, 3, generator=draw)
    router = fit_router(states, targets)
    centred = (targets - targets.mean(1, keepdim=True)).double()
    scale = states.double().std(0)
    z = (states.double() - states.double().mean(0)) / torch.where(scale > 0, scale, torch.inf)
    kernel = z @ z.T / 5 + 1
    wanted = kernel @ torch.linalg.solve(kernel + router.penalty * torch.eye(12), centred)
    assert_close(router.scores(states).double(), wanted, rtol=0, atol=1e-4)
    assert router.prompts == 3 and router.contexts == 12


def kinds_of_text(count: int, seed: int) -> list[list[int]]:
    """Texts of three kinds in turn, each with four tokens of its own."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(80 * (i % 3), 80 * (i % 3) + 4, (6 + i % 5,), generator=draw).tolist() for i in range(count)]


def test_a_router_learns_what_the_likelihood_says(tmp_path, monkeypatch):
    """The teacher here finds each kind of text likely behind one prompt; its level of difficulty must not matter."""

    def teacher(runtime, input_ids, mask, *, tokens=None, keep=True):
        kind = input_ids[:, -1] // 80
        difficulty = torch.rand(len(kind), 1, generator=torch.Generator().manual_seed(len(kind))) * 50
        return difficulty + (kind[:, None] != torch.arange(3)).float(), None

    bank = make_bank(tmp_path, selector=RouterSelector())
    monkeypatch.setattr(selectors, "likelihood_pass", teacher)
    bank.calibrate(kinds_of_text(60, seed=1))
    monkeypatch.undo()
    chosen = bank.select(*batch(kinds_of_text(60, seed=2))).selection
    assert (chosen == torch.arange(60) % 3).float().mean() > 0.95


def test_a_router_without_labels_asks_the_likelihood_of_each_text(tmp_path):
    bank = make_bank(tmp_path, selector=RouterSelector())
    texts = some_texts(10)
    bank.calibrate(texts, batch_size=3)
    nll = torch.tensor([[naive_nll(bank, number, text) for number in range(3)] for text in texts])
    states = torch.cat(
        [pooled_states(bank.model, torch.tensor([t]), torch.ones(1, len(t)).long(), 0.5) for t in texts]
    )
    wanted = fit_router(states, -nll)
    assert bank.selector.router.penalty == wanted.penalty
    assert_close(bank.scores(*batch()), wanted.scores(pooled_states(bank.model, *batch(), 0.5)), rtol=0, atol=1e-4)


def test_a_router_takes_labels_in_place_of_the_likelihood(tmp_path):
    bank = make_bank(tmp_path, selector=RouterSelector(depth=0.0))
    turned = [(i + 1) % 3 for i in range(60)]
    bank.calibrate(kinds_of_text(60, seed=1), labels=turned)
    assert bank.select(*batch(kinds_of_text(9, seed=3))).selection.tolist() == turned[:9]
    with pytest.raises(UsageError, match="numbers from 0 to 2"):
        bank.calibrate(kinds_of_text(2, seed=1), labels=[0, 3])


def test_one_prompt_needs_no_choice(tmp_path):
    bank = make_bank(tmp_path, lengths=(4,), selector="attention")
    assert bank.select(*batch()).selection.tolist() == [0] * 4 and bank.histogram().counts == {"p0": 4}


def test_the_smallest_number_wins_a_tie():
    scores = torch.tensor([[1.0, 1.0, 0.5], [0.2, 0.7, 0.7 + 1e-7], [-3.0, -2.0, -2.5], [0.0, 0.0, 0.0]])
    assert best(scores).tolist() == [0, 1, 1, 0]
    with pytest.raises(NonFiniteError):
        best(torch.tensor([[0.0, float("nan")]]))


def test_a_histogram_counts_rows_and_tokens(ready):  # property 19
    ready.select(*batch())
    ready(*batch())
    ready(*batch(), [0, 0, 0, 0])  # given: not counted
    ready.scores(*batch())
    histogram = ready.histogram()
    assert histogram.rows == 8 and sum(histogram.counts.values()) == 8
    chosen = ready.select(*batch()).selection.tolist() * 2
    assert histogram.effective_tokens == pytest.approx(sum(LENGTHS[i] for i in chosen) / 8)


def test_half_and_half_is_the_papers_38_tokens():
    assert Histogram({"small": 7, "large": 7}, {"small": 26, "large": 50}).effective_tokens == 38
    assert Histogram({"a": 0, "b": 0}, {"a": 1, "b": 1}).effective_tokens == 0


@pytest.mark.parametrize(("counts", "constant"), [((96, 4), "a"), ((95, 5), None), ((19, 0), None), ((20, 0), "a")])
def test_a_constant_choice_is_called_one(counts, constant):
    lengths = {"a": 3, "b": 3}
    assert Histogram(dict(zip("ab", counts)), lengths).constant == constant
    assert Histogram({"a": 50}, {"a": 3}).constant is None


def test_a_constant_choice_is_warned_of_once(tmp_path, caplog):
    bank = make_bank(tmp_path, selector="paper")
    with torch.no_grad():
        bank.model.model.layers[0].self_attn.k_proj.weight.zero_()  # all tie: always prompt 0
    with caplog.at_level(logging.WARNING):
        for _ in range(7):
            bank.select(*batch())
    assert caplog.text.count("makes no choice") == 1 and "20 of 20 rows got the prompt 'p0'" in caplog.text


def test_choices_of_one_question_share_its_prompt_and_scored_tokens_are_not_read(ready):  # property 17
    question, answers = TEXTS[1], [[5, 6], [7], [8, 9, 10]]
    chosen = ready.select(torch.tensor([question])).selection
    ids, mask = batch([question + answer for answer in answers], left=False)
    logits = ready(ids, mask, chosen.expand(3)).logits
    for row, answer in enumerate(answers):
        wanted = plain_logits(ready, int(chosen), question + answer)
        assert_close(logits[row, : len(question) + len(answer)], wanted, rtol=0, atol=1e-5)
    assert torch.equal(chosen, ready.select(torch.tensor([question])).selection)


def test_a_selection_is_fixed_at_the_start(tmp_path):  # property 12
    bank = make_bank(tmp_path)
    ids, mask = batch()
    bank.generate(ids, mask, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=257)
    assert bank.histogram().rows == 4


def test_rows_without_tokens_and_unknown_selectors_are_refused(tmp_path):
    bank = make_bank(tmp_path)
    with pytest.raises(DataError, match="without tokens"):
        bank.select(torch.tensor([[5, 6], [7, 8]]), torch.tensor([[1, 1], [0, 0]]))
    with pytest.raises(UsageError, match="did you mean 'likelihood'"):
        PromptBank(bank.model, bank._runtime.prompts, selector="liklihood")
    with pytest.raises(NotSupportedError, match="list of 2 layers"):
        bank.model.model.layers = torch.nn.Sequential(*bank.model.model.layers)
        decoder_blocks(bank.model)
