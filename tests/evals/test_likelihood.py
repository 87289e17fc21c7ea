import numpy as np
import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model

from budwood.data.problems import Origin
from budwood.data.render import UNTRAINED, Encoded
from budwood.errors import NotSupportedError, OutOfMemoryError, UsageError
from budwood.evals.likelihood import HEAD_ROWS, likelihoods
from tests import tiny


def sequence(length: int, prompt: int, seed: int = 0) -> Encoded:
    ids = torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    labels = [UNTRAINED] * prompt + ids[prompt:]
    return Encoded(ids, labels, [float(label != UNTRAINED) for label in labels], Origin("rows.jsonl"), 0)


SEQUENCES = [sequence(5 + 7 * i % 31, 1 + i % 4, seed=i) for i in range(11)]


def naive(model, one: Encoded) -> tuple[list[float], bool]:
    """Alone, without padding, in float64, by the definition."""
    with torch.no_grad():
        log_p = model(input_ids=torch.tensor([one.input_ids])).logits[0].double().log_softmax(dim=-1)
    log_p = log_p[-len(one.input_ids) :]
    places = [t for t in range(1, len(one.labels)) if one.labels[t] != UNTRAINED]
    right = [int(log_p[t - 1].argmax()) == one.labels[t] for t in places]
    return [-float(log_p[t - 1, one.labels[t]]) for t in places], all(right)


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
@pytest.mark.parametrize("batch_size", [1, 3, 11, "auto"])
def test_equals_the_definition_at_every_batch_size(make, batch_size):
    model = make()
    for one, found in zip(SEQUENCES, likelihoods(model, SEQUENCES, batch_size=batch_size), strict=True):
        nll, exact = naive(model, one)
        np.testing.assert_allclose(found.token_nll, nll, atol=1e-5)
        assert found.nll == pytest.approx(sum(nll), abs=1e-4)
        assert found.tokens == len(nll) == one.supervised
        assert found.exact is exact


def test_exact_needs_every_token_and_nothing_else():
    model = tiny.llama()
    ids = [65, 66, 67]
    with torch.no_grad():
        for _ in range(4):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    greedy = Encoded(ids, [UNTRAINED] * 3 + ids[3:], [0.0] * 3 + [1.0] * 4, Origin("r"), 0)
    wrong = [*ids[:-1], (ids[-1] + 1) % 256]
    off = Encoded(wrong, [UNTRAINED] * 3 + wrong[3:], [0.0] * 3 + [1.0] * 4, Origin("r"), 0)
    assert [one.exact for one in likelihoods(model, [greedy, off])] == [True, False]


def test_gaps_in_the_labels_are_left_out():
    model, one = tiny.llama(), sequence(12, 2)
    one.labels[5:8] = [UNTRAINED] * 3
    (found,) = likelihoods(model, [one])
    np.testing.assert_allclose(found.token_nll, naive(model, one)[0], atol=1e-5)
    assert found.tokens == 7


def test_the_first_token_is_predicted_from_nothing_and_does_not_count():
    (found,) = likelihoods(tiny.llama(), [sequence(6, 0)])
    assert found.tokens == 5


def test_token_weights_are_not_used():
    one = sequence(9, 2)
    heavy = Encoded(one.input_ids, one.labels, [3.0] * 9, one.origin, 0)
    first, second = likelihoods(tiny.llama(), [one, heavy])
    assert first.nll == pytest.approx(second.nll, abs=1e-6)


def test_more_supervised_tokens_than_one_piece_of_logits():
    model = tiny.llama(max_position_embeddings=2 * HEAD_ROWS)
    one = sequence(HEAD_ROWS + 50, 1)
    (found,) = likelihoods(model, [one])
    np.testing.assert_allclose(found.token_nll, naive(model, one)[0], atol=1e-5)


def test_nothing_supervised_gives_empty_likelihoods():
    found = likelihoods(tiny.llama(), [sequence(4, 4), sequence(3, 3)])
    assert [(one.tokens, one.nll, one.exact) for one in found] == [(0, 0.0, True)] * 2


def test_the_head_computes_supervised_positions_only():
    model = tiny.llama()
    shapes: list[tuple[int, ...]] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(inputs[0].shape)))
    likelihoods(model, [sequence(20, 17), sequence(12, 10)], batch_size=2)
    assert shapes == [(1, 5, 32)]
    assert len(model.lm_head._forward_pre_hooks) == 0


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")  # PEFT's own call, for a prefix
@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "lm_head"], init_lora_weights=False),
        PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5),
        PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5),
    ],
    ids=["lora on the head", "prompt", "prefix"],
)
def test_adapters_equal_the_definition_through_pefts_own_forward(config):
    torch.manual_seed(0)
    model = get_peft_model(tiny.llama(tie_word_embeddings=False), config).eval()
    for one, found in zip(SEQUENCES, likelihoods(model, SEQUENCES, batch_size=4), strict=True):
        np.testing.assert_allclose(found.token_nll, naive(model, one)[0], atol=1e-5)


def test_modes_are_restored_and_dropout_is_off():
    model = tiny.llama(attention_dropout=0.5).train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    first, second = (likelihoods(model, SEQUENCES)[0].nll for _ in range(2))
    assert first == second
    assert [module.training for module in model.modules()] == before


def test_training_goes_on_after_an_evaluation():
    model = tiny.llama()
    likelihoods(model, SEQUENCES)
    ids = torch.tensor([SEQUENCES[0].input_ids])
    model(input_ids=ids, labels=ids).loss.backward()
    assert model.lm_head.weight.grad.abs().sum() > 0


def test_progress_counts_rows():
    seen = []
    likelihoods(tiny.llama(), SEQUENCES, batch_size=4, progress=lambda *call: seen.append(call))
    assert seen == [("likelihood", 4, 11), ("likelihood", 8, 11), ("likelihood", 11, 11)]


def test_no_sequences_give_nothing():
    assert likelihoods(tiny.llama(), []) == []


def test_errors(monkeypatch):
    model = tiny.llama()
    with pytest.raises(UsageError, match="batch size of 0"):
        likelihoods(model, SEQUENCES, batch_size=0)
    with pytest.raises(NotSupportedError, match="no language-model head"):
        likelihoods(model.model, SEQUENCES)

    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(model, "forward", full)
    with pytest.raises(OutOfMemoryError, match="smaller batch size"):
        likelihoods(model, SEQUENCES)
    assert len(model.lm_head._forward_pre_hooks) == 0
