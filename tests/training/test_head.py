import pytest
import torch
import torch.nn.functional as F
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from budwood.errors import NotSupportedError
from budwood.training import head as module
from budwood.training.head import head_nll, plain_head
from budwood.training.loss import target_logits, token_nll, weighted_nll
from tests import tiny
from tests.training.rows import collate, lora_model, make_rows
from tests.training.test_loss import naive


def sizes(**changes):
    common = dict(vocab_size=259, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    specials = dict(pad_token_id=257, bos_token_id=None, eos_token_id=256)
    return common | specials | dict(num_key_value_heads=2) | changes


def one(batch):
    return {name: batch[name][:1] for name in ("input_ids", "attention_mask")}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_chunks_are_the_whole_with_its_gradient(rows, biased, monkeypatch):
    """Against float64, in chunks of one row, of three, and in one."""
    torch.manual_seed(0)
    hidden, weight, ids = torch.randn(10, 8), torch.randn(21, 8), torch.randint(21, (10,))
    bias, factors = torch.randn(21) if biased else None, torch.rand(10)
    monkeypatch.setattr(module, "CHUNK_BYTES", rows * 4 * 21)
    hidden.requires_grad_()
    nll = head_nll(hidden, weight, bias, ids)
    (nll * factors).sum().backward()
    exact = hidden.detach().double().requires_grad_()
    wanted = F.cross_entropy(
        F.linear(exact, weight.double(), None if bias is None else bias.double()), ids, reduction="none"
    )
    (wanted * factors).sum().backward()
    torch.testing.assert_close(nll.double(), wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(hidden.grad.double(), exact.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype, near", [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_the_loss_is_that_of_all_logits_and_so_are_the_gradients(dtype, near, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 7 * 4 * 259)
    model, batch = lora_model(base=tiny.llama().to(dtype)), collate(make_rows(6))
    total, weight = weighted_nll(model, batch)
    (total / weight).backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    logits, targets = target_logits(model, batch)
    whole = (F.cross_entropy(logits.float(), targets.ids, reduction="none") * targets.weights).sum() / weight
    whole.backward()
    torch.testing.assert_close(total / weight, whole, rtol=1e-6, atol=1e-6)
    largest = max(p.grad.abs().max().item() for p in model.parameters() if p.requires_grad)
    for name, p in model.named_parameters():
        if p.requires_grad:
            torch.testing.assert_close(found[name], p.grad, rtol=0, atol=near * max(1.0, largest))


def test_never_more_logits_than_a_chunk(monkeypatch):
    made, linear = [], F.linear
    monkeypatch.setattr(module, "CHUNK_BYTES", 5 * 4 * 259)

    def watched(*arguments):
        made.append(linear(*arguments))
        return made[-1]

    model, batch = lora_model(), collate(make_rows(6))
    plain_head(model.get_base_model(), one(batch))
    monkeypatch.setattr(F, "linear", watched)
    nll, _ = token_nll(model, batch)
    vocabulary = [tensor.shape for tensor in made if tensor.shape[-1] == 259]
    assert sum(shape[0] for shape in vocabulary) == len(nll) and max(shape[0] for shape in vocabulary) == 5


def test_a_second_derivative_is_refused_with_the_reason_and_had_from_the_logits():
    model, batch = lora_model(), collate(make_rows(2))
    trained = [p for p in model.parameters() if p.requires_grad]
    total, _ = weighted_nll(model, batch)
    with pytest.raises(NotSupportedError, match="second derivative"):
        torch.autograd.grad(total, trained, create_graph=True)
    model = lora_model(base=tiny.llama(attn_implementation="eager"))
    logits, targets = target_logits(model, batch)
    trained = [p for p in model.parameters() if p.requires_grad]
    first = torch.autograd.grad(F.cross_entropy(logits, targets.ids), trained, create_graph=True)
    assert sum(g.square().sum() for g in first).requires_grad


def test_which_heads_are_plain():
    batch = collate(make_rows(2))
    assert plain_head(tiny.llama().requires_grad_(False), one(batch)) is not None
    assert plain_head(tiny.gpt2().requires_grad_(False), one(batch)) is not None
    assert plain_head(tiny.llama(), one(batch)) is None  # its weight is trained
    adapted = lora_model(base=tiny.llama(tie_word_embeddings=False), target_modules=["q_proj", "lm_head"])
    assert plain_head(adapted.get_base_model(), one(batch)) is None
    watched = tiny.llama().requires_grad_(False)
    watched.lm_head.register_forward_hook(lambda *_: None)
    assert plain_head(watched, one(batch)) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gemma2ForCausalLM(Gemma2Config(**sizes(head_dim=8, final_logit_softcapping=2.0))),
        lambda: GraniteForCausalLM(GraniteConfig(**sizes(logits_scaling=4.0))),
    ],
    ids=["soft cap", "scale"],
)
def test_logits_that_the_model_changes_are_not_passed_over(make):
    torch.manual_seed(0)
    model, rows = make().requires_grad_(False).eval(), make_rows(3)
    assert plain_head(model, one(collate(rows))) is None
    torch.testing.assert_close(weighted_nll(model, collate(rows))[0], naive(model, rows)[0], rtol=1e-5, atol=1e-4)


def test_finding_out_draws_no_random_numbers_and_leaves_the_head():
    model = tiny.gpt2().requires_grad_(False).train()
    torch.manual_seed(3)
    wanted = torch.rand(())
    torch.manual_seed(3)
    plain_head(model, one(collate(make_rows(2))))
    assert torch.equal(torch.rand(()), wanted) and "forward" not in model.lm_head.__dict__
