import pytest
import torch
import torch.nn.functional as F
from peft import PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

from budwood.errors import NotSupportedError
from budwood.training.loss import find_targets, weighted_nll
from tests import tiny
from tests.training.rows import Encoded, collate, lora_model, make_rows


def naive(model, rows, *, shifted=True, offset=0, **inputs):
    """Σ w·nll and Σ w, row by row and token by token, without padding."""
    total, weight = torch.zeros(()), 0.0
    for row in rows:
        ids = torch.tensor([row.input_ids])
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0]
        for position in range(int(shifted), len(row.labels)):
            if row.labels[position] != -100 and row.loss_weights[position] > 0:
                scores = F.log_softmax(logits[position - int(shifted) + offset].float(), dim=-1)
                total = total - row.loss_weights[position] * scores[row.labels[position]]
                weight += row.loss_weights[position]
    return total, weight


@pytest.mark.parametrize("base", [tiny.llama, tiny.gpt2])
def test_the_loss_is_the_sum_over_tokens(base):
    model, rows = base(), make_rows(5)
    total, weight = weighted_nll(model, collate(rows))
    wanted, wanted_weight = naive(model, rows)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, wanted, rtol=1e-5, atol=1e-4)
    assert weight.item() == pytest.approx(wanted_weight, rel=1e-6)


def test_the_gradient_is_that_of_the_full_logits():
    model, batch = lora_model(), collate(make_rows(5))
    weighted_nll(model, batch)[0].backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    nll = F.cross_entropy(logits.transpose(1, 2), batch["labels"][:, 1:], reduction="none", ignore_index=-100)
    (nll * batch["loss_weights"][:, 1:]).sum().backward()
    for name, p in model.named_parameters():
        if p.requires_grad:
            torch.testing.assert_close(gradients[name], p.grad, rtol=1e-4, atol=1e-6)


def test_the_head_sees_weighted_targets_only_and_contiguous():
    model, batch, seen = tiny.llama(), collate(make_rows(6)), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    weighted_nll(model, batch)
    targets = ((batch["labels"][:, 1:] != -100) & (batch["loss_weights"][:, 1:] > 0)).sum()
    (hidden,) = seen
    assert hidden.shape[:2] == (1, targets) and hidden.is_contiguous()
    assert not model.lm_head._forward_pre_hooks


def test_a_weight_of_zero_is_a_gradient_of_exactly_zero():
    """A token without weight changes no bit, whatever it is."""
    model, (row,) = lora_model(), make_rows(1, longest=20)
    row.loss_weights[-1] = 0.0
    other = Encoded([*row.input_ids[:-1], 3], [*row.labels[:-1], 3], row.loss_weights)
    gradients = []
    for one in (row, other):
        model.zero_grad()
        weighted_nll(model, collate([one]))[0].backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.requires_grad])
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_without_weight_gives_zero_and_zero_gradients(dtype):
    model, rows = lora_model(base=tiny.llama().to(dtype)), make_rows(3)
    batch = collate(rows)
    batch["loss_weights"] = torch.zeros_like(batch["loss_weights"])
    total, weight = weighted_nll(model, batch)
    total.backward()
    assert total.item() == weight.item() == 0
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    assert all(g is not None and not g.any() for g in gradients)


def test_the_first_token_is_predicted_by_nothing():
    batch = {"labels": torch.tensor([[5, 6, -100, 7]]), "loss_weights": torch.tensor([[1.0, 0.5, 1.0, 0.0]])}
    targets = find_targets(batch)
    assert targets.ids.tolist() == [6] and targets.positions.tolist() == [0] and targets.weights.tolist() == [0.5]


@pytest.mark.parametrize("config", [PromptTuningConfig, PromptEncoderConfig])
def test_soft_prompts_shift_the_logits_but_not_the_targets(config):
    torch.manual_seed(0)
    model = get_peft_model(tiny.llama(), config(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    rows = make_rows(4)
    torch.testing.assert_close(
        weighted_nll(model, collate(rows))[0], naive(model, rows, offset=3)[0], rtol=1e-5, atol=1e-4
    )


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_prefixes_shift_nothing():
    torch.manual_seed(0)
    model = get_peft_model(tiny.llama(), PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    rows = make_rows(4)
    torch.testing.assert_close(weighted_nll(model, collate(rows))[0], naive(model, rows)[0], rtol=1e-5, atol=1e-4)


def t5() -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    sizes = dict(vocab_size=259, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0)
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=257, pad_token_id=257)).eval()


def test_an_encoder_decoder_predicts_labels_in_place():
    model, rows = t5(), make_rows(4)
    total, weight = torch.zeros(()), 0.0
    for row in rows:
        ids, labels = torch.tensor([row.input_ids]), torch.tensor([row.labels])
        logits = model(input_ids=ids, labels=labels).logits[0].float()
        for position, (label, w) in enumerate(zip(row.labels, row.loss_weights)):
            if label != -100:
                total = total - w * F.log_softmax(logits[position], dim=-1)[label]
                weight += w
    found, found_weight = weighted_nll(model, collate(rows))
    torch.testing.assert_close(found, total, rtol=1e-5, atol=1e-4)
    assert found_weight.item() == pytest.approx(weight, rel=1e-6)


def test_a_masked_language_model_is_refused():
    sizes = dict(vocab_size=259, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32)
    with pytest.raises(NotSupportedError, match="masked"):
        weighted_nll(BertForMaskedLM(BertConfig(**sizes)), collate(make_rows(2)))


def test_a_module_that_is_no_language_model_is_refused():
    with pytest.raises(NotSupportedError, match="Linear"):
        weighted_nll(torch.nn.Linear(2, 2), collate(make_rows(2)))
