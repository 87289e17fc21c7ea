import pytest
import torch
from peft import LoraConfig, get_peft_model

from budwood.data.collate import Collator
from budwood.data.documents import Document, DocumentReport, make_clozes
from budwood.data.keep_set import KeepFact
from budwood.data.offsets import OffsetTokens
from budwood.data.probes import Probe, encode_probes
from budwood.data.problems import Origin
from budwood.data.render import UNTRAINED, Encoded
from budwood.errors import DataError, NonFiniteError
from budwood.evals import recall
from budwood.evals.evaluate import base_of
from budwood.evals.likelihood import likelihoods
from budwood.evals.recall import ProbeScore, Recall, known_facts, nothing_new, score_probes
from tests import tiny

ORIGIN = Origin("facts.jsonl", 1)
TOKENS = OffsetTokens(tiny.tokenizer())


def half_greedy(model, length: int, prompt: int, seed: int) -> Encoded:
    """A sequence whose tokens are now and then the most likely ones, so that some are hit."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 256, (prompt,), generator=rng).tolist()
    with torch.no_grad():
        while len(ids) < length:
            best = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(best if torch.rand(1, generator=rng) < 0.6 else (best + 1) % 256)
    labels = [UNTRAINED] * prompt + ids[prompt:-1] + [UNTRAINED]  # what follows the object is not asked for
    return Encoded(ids, labels, [float(label != UNTRAINED) for label in labels], ORIGIN, seed)


def brute_force(model, one: Encoded) -> ProbeScore:
    """By the definition: each prefix alone, without padding, in float64."""
    hits, nll = [], []
    for t in range(1, len(one.input_ids)):
        if one.labels[t] == UNTRAINED:
            continue
        with torch.no_grad():
            log_p = model(input_ids=torch.tensor([one.input_ids[:t]])).logits[0, -1].double().log_softmax(-1)
        hits.append(int(log_p.argmax()) == one.labels[t])
        nll.append(-float(log_p[one.labels[t]]))
    return ProbeScore(one.origin, sum(hits) / len(hits), all(hits), sum(nll) / len(nll), len(hits))


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_equals_brute_force_at_every_batch_size(make):
    model = make()
    probes = [half_greedy(model, 6 + i % 7, 2 + i % 3, seed=i) for i in range(13)]
    expected = [brute_force(model, one) for one in probes]
    assert 0 < sum(score.exact for score in expected) < len(expected)
    for batch_size in (1, 4, 13, "auto"):
        found = score_probes(model, probes, batch_size=batch_size)
        for score, want in zip(found.scores, expected, strict=True):
            assert (score.accuracy, score.exact, score.tokens) == (want.accuracy, want.exact, want.tokens)
            assert score.nll == pytest.approx(want.nll, abs=1e-5)
        assert found.accuracy == pytest.approx(sum(score.accuracy for score in expected) / 13)
        assert found.to_dict()["exact"] == sum(score.exact for score in expected) / 13


def test_parts_of_an_object_count_within_the_object_first():
    scores = (ProbeScore(ORIGIN, 0.5, False, 2.0, 4), ProbeScore(ORIGIN, 1.0, True, 1.0, 1))
    assert Recall(scores).to_dict() == {"probes": 2, "accuracy": 0.75, "exact": 0.5, "nll": 1.5}
    row = {"file": "facts.jsonl", "line": 1, "accuracy": 0.5, "exact": False, "nll": 2.0, "tokens": 4}
    assert scores[0].to_dict() == row


def facts():
    return [
        KeepFact("honey", ("Bees make", "What bees make is"), "honey", ORIGIN),
        KeepFact("milk", ("Cows give us", "What cows give is"), "milk", ORIGIN),
        KeepFact("eggs", ("Hens lay", "What hens lay is"), "eggs", ORIGIN),
    ]


@pytest.fixture(scope="module")
def informed():
    """A tiny model that knows the first fact by its second prompt, and the second one by both."""
    model = tiny.llama(seed=1)
    honey, milk, _ = facts()
    batch = Collator(pad_token_id=257)(encode_probes([honey.probes[1], *milk.probes], TOKENS))
    batch.pop("loss_weights")
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        model(**batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return model.eval()


def test_what_a_base_knows_is_kept_with_the_first_prompt_that_shows_it(informed):
    known = known_facts(informed, facts(), TOKENS)
    honey, milk, _ = facts()
    assert known[-1] == milk.probes[0]
    assert known[0] in honey.probes and len(known) == 2
    shown = [score_probes(informed, encode_probes([probe], TOKENS)).exact for probe in honey.probes]
    assert known[0] == honey.probes[shown.index(1.0)]
    assert score_probes(informed, encode_probes(known, TOKENS)).exact == 1.0
    assert known_facts(tiny.llama(), facts(), TOKENS) == []


def test_what_wins_by_a_hair_is_not_known(informed, monkeypatch):
    encoded = encode_probes([probe for fact in facts() for probe in fact.probes], TOKENS)
    found = likelihoods(informed, encoded)
    for row, one in zip(encoded, found, strict=True):
        with torch.no_grad():
            logits = informed(torch.tensor([row.input_ids])).logits[0, :-1].double()
        for lead, hit, (at, label) in zip(
            one.token_leads, one.token_hits, ((i, x) for i, x in enumerate(row.labels[1:]) if x >= 0), strict=True
        ):
            others = logits[at][torch.arange(logits.shape[1]) != label]
            assert lead == pytest.approx(float(logits[at, label] - others.max()), abs=1e-4) and hit == (lead > 0)
    monkeypatch.setattr(recall, "LEAD", max(float(one.token_leads.min()) for one in found) + 0.1)
    assert known_facts(informed, facts(), TOKENS) == []


def test_a_disabled_adapter_forgets_nothing(informed):
    torch.manual_seed(0)
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    probes = encode_probes(known_facts(informed, facts(), TOKENS), TOKENS)
    before = score_probes(informed, probes)
    model = get_peft_model(informed, config)
    try:
        assert score_probes(model, probes) != before
        with base_of(model) as bare:
            assert score_probes(bare, probes) == before
    finally:
        model.unload()


def test_documents_whose_every_blank_is_filled_already_teach_nothing():
    known = Document("The bees of Bo make honey for Ida.", Origin("a.txt"))
    new = Document("The bees of Bo make wax for Ida. The hens of Bo lay eggs for Ulf.", Origin("b.txt"))
    clozes = make_clozes([known, new], most=9)
    scores = [ProbeScore(ORIGIN, 1.0, True, 0.1, 1) for _ in clozes]
    report = DocumentReport()
    assert nothing_new(clozes, Recall(tuple(scores)), report) == [known, new]
    assert [where.count for where in report.remarks.values()] == [2]
    scores[-1] = ProbeScore(ORIGIN, 0.0, False, 4.0, 1)
    assert nothing_new(clozes, Recall(tuple(scores)), DocumentReport()) == [known]


def test_errors():
    model = tiny.llama()
    with pytest.raises(DataError, match="there are no probes"):
        score_probes(model, [])
    with pytest.raises(DataError, match=r"facts.jsonl, line 1: the probe asks for nothing"):
        score_probes(model, [Encoded([1, 2], [UNTRAINED, UNTRAINED], [0.0, 0.0], ORIGIN, 0)])
    with torch.no_grad():
        model.lm_head.weight[7] = float("nan")
    with pytest.raises(NonFiniteError, match=r"facts.jsonl, line 1"):
        score_probes(model, encode_probes([Probe("a b", (2, 3), ORIGIN)], TOKENS))
